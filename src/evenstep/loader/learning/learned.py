"""`Learned`: what was found of a job, plain enough to be sent to other ranks and to be saved."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenstep.batch.blank import Blank
from evenstep.batch.pad import PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain


@dataclass(frozen=True, kw_only=True)
class CollateFacts:
    """How a collate function prepares samples: see `PreparingCollator`."""

    again: bool
    late: bool
    padding: Mapping[str, Any] | None
    """Options of `PadCollator`; None leaves the collator as it is."""

    def applied_to(self, collate_fn: Any) -> PreparingCollator:
        """
        Args:
            collate_fn: the user's, or a `PreparingCollator`.
        """
        given = isinstance(collate_fn, PreparingCollator)
        made: PreparingCollator = collate_fn if given else PreparingCollator(collate_fn=collate_fn)
        made = replace(made, again=self.again, late=self.late)
        if self.padding is None:
            return made
        collator = PadCollator(**self.padding, media_fields=made.media_fields)
        return replace(made, collator=collator)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was found of a job of so many ranks."""

    ranks: int
    collate: CollateFacts | None = None
    """None where the collate function does not prepare samples, or nothing had to be found."""
    blank: Blank | None = None
    """None where there is none, or it was given."""
    accumulate: int | None = None
    """Steps of an update; None where `update_tokens` does not decide."""
    target_tokens: int | None = None
    """Of a group, where an update needs smaller groups than the policy forms."""
    repeatable: bool = True
    """A sample that is made twice has the same length, as far as is known."""

    def applied_to(self, options: LoaderOptions) -> LoaderOptions:
        """Options that the batcher runs with."""
        changes: dict[str, Any] = {}
        if self.collate is not None:
            packed = options.policy.packed
            changes["collate_fn"] = replace(
                self.collate.applied_to(options.collate_fn), packed=packed
            )
        if self.blank is not None:
            changes["blank"] = self.blank
        if self.accumulate is not None:
            changes["accumulate"] = self.accumulate
        if self.target_tokens is not None:
            policy: Any = options.policy
            changes["policy"] = replace(policy, target_tokens=self.target_tokens)
        return replace(options, **changes)

    # For other ranks

    def to_bytes(self) -> bytes:
        value = {
            **self.sizes(),
            "collate": None if self.collate is None else vars(self.collate),
            "blank": None if self.blank is None else [dict(self.blank.fields), self.blank.media],
        }
        return zlib.compress(pack_plain(value, "the blank"), 1)  # of a blank, most is white

    @classmethod
    def from_bytes(cls, data: bytes) -> Learned:
        """
        Raises:
            LookupError, TypeError, ValueError, zlib.error: it is not what `to_bytes` returned.
        """
        value = unpack_plain(memoryview(zlib.decompress(data)))
        collate, blank = value.pop("collate"), value.pop("blank")
        return cls(
            **value,
            collate=None if collate is None else CollateFacts(**collate),
            blank=None if blank is None else Blank(*blank),
        )

    # For a loader's state

    def sizes(self) -> dict[str, Any]:
        """JSON-able: what a resumed job takes from its state."""
        return {
            "ranks": self.ranks,
            "accumulate": self.accumulate,
            "target_tokens": self.target_tokens,
            "repeatable": self.repeatable,
        }
