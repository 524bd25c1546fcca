"""`Learned`: what was found of a job, plain enough to be sent to other ranks and to be saved."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenstep.batch.blank import Blank, BlankRow
from evenstep.batch.prepare import PreparingCollator
from evenstep.loader.options import LoaderOptions


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
        return zlib.compress(pickle.dumps(self), 1)  # of a blank, most is white

    @classmethod
    def from_bytes(cls, data: bytes) -> Learned:
        learned: Learned = pickle.loads(zlib.decompress(data))
        return learned

    # For a loader's state

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Learned:
        """What `saved` returned."""
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
