"""`Learned`: what was found of a job, plain enough to be sent to other ranks and to be saved."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenstep.batch.blank import Blank, BlankRow
from evenstep.batch.prepare import PreparingCollator
from evenstep.loader.batcher.filler_sample import pack_sample, unpack_sample
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was found of a job of so many ranks."""

    ranks: int
    collate: Mapping[str, Any] | None = None
    """`PreparingCollator.found`; None where the collate function does not prepare samples, or
    nothing had to be found."""
    blank: Blank | BlankRow | None = None
    """None where there is none, or it was given."""
    accumulate: int | None = None
    """Steps of an update; None where `update_tokens` does not decide."""
    sizes: tuple[tuple[int, int], ...] = ()
    """What `accumulate` may be instead: see `RankProtocol`."""
    target_tokens: int | None = None
    """Of a group, where an update needs smaller groups than the policy forms."""
    repeatable: bool = True
    """A sample that is made twice has the same length, as far as is known."""

    def applied_to(self, options: LoaderOptions) -> LoaderOptions:
        """Options that the batcher runs with."""
        changes: dict[str, Any] = {}
        if self.collate is not None:
            made = options.collate_fn
            if not isinstance(made, PreparingCollator):
                made = PreparingCollator(collate_fn=made)
            made = replace(made, packed=options.policy.packed)
            changes["collate_fn"] = made.with_found(self.collate)
        if self.blank is not None:
            changes["blank"] = self.blank
        if self.accumulate is not None:
            changes["accumulate"] = self.accumulate
            changes["sizes"] = self.sizes
        if self.target_tokens is not None:
            policy: Any = options.policy
            changes["policy"] = replace(policy, target_tokens=self.target_tokens)
        return replace(options, **changes)

    # For other ranks

    def to_bytes(self) -> bytes:
        blank: Any = None
        if isinstance(self.blank, Blank):
            blank = [dict(self.blank.fields), self.blank.media]
        elif self.blank is not None:
            blank = [pack_sample(self.blank.sample), self.blank.media]
        value = {**self.saved(), "collate": self.collate, "blank": blank}
        return zlib.compress(pack_plain(value, "the blank"), 1)  # of a blank, most is white

    @classmethod
    def from_bytes(cls, data: bytes) -> Learned:
        """
        Raises:
            LookupError, TypeError, ValueError, zlib.error: it is not what `to_bytes` returned.
        """
        value = unpack_plain(memoryview(zlib.decompress(data)))
        blank = value.pop("blank")
        if blank is not None:
            held, media = blank
            row = isinstance(held, bytes)
            blank = BlankRow(unpack_sample(held), media) if row else Blank(held, media)
        return replace(cls.of(value), blank=blank)

    # For a loader's state

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Learned:
        """What `saved` returned, or `to_bytes` wrote."""
        sizes = tuple((steps, tokens) for steps, tokens in saved.get("sizes", ()))
        return cls(**{**saved, "sizes": sizes})

    def saved(self) -> dict[str, Any]:
        """JSON-able: what a resumed job takes from its state."""
        sizes = {"sizes": [list(size) for size in self.sizes]} if self.sizes else {}
        return {
            "ranks": self.ranks,
            "accumulate": self.accumulate,
            **sizes,
            "target_tokens": self.target_tokens,
            "repeatable": self.repeatable,
        }
