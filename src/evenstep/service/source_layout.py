"""Which loader has which samples.

Sources are dealt to loaders. Where there are more loaders than sources, a source is shared by
several: its positions are cut into stripes, which they own in turn. Who has a sample changes
nothing in which samples there are, so plans are the same for any layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least
from evenstep.strategy import LoaderWork, LoadingPlan

__all__ = ["SourceLayout", "SourceStripe", "StageKey", "works_of"]


STRIPE = 64
"""Positions of a stripe."""

StageKey = tuple[str | None, int]
"""Where samples are staged within a step: the name of the subplan, None for the plan itself, and
the bucket."""


@dataclass(frozen=True, kw_only=True)
class SourceStripe:
    """The positions of a source that a loader has."""

    source: str
    part: int = 0
    parts: int = 1
    stripe: int = STRIPE

    def owns(self, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """[positions] whether each is of this share."""
        mine: npt.NDArray[np.bool_] = (positions // self.stripe) % self.parts == self.part
        return mine

    def next_owned(self, position: int) -> int:
        """The first position from this one on that is of this share."""
        stripe, part = position // self.stripe, (position // self.stripe) % self.parts
        ahead = (self.part - part) % self.parts
        return position if not ahead else (stripe + ahead) * self.stripe


@dataclass(frozen=True)
class SourceLayout:
    """Shares of sources by loader."""

    sources: tuple[str, ...]
    shares: tuple[tuple[SourceStripe, ...], ...]
    """[loaders]"""

    @classmethod
    def deal(cls, sources: Sequence[str], loaders: int, *, stripe: int = STRIPE) -> SourceLayout:
        """Sources to loaders in turn, or loaders to sources where there are more of them.

        Raises:
            ConfigurationError: less than one loader or position.
        """
        check_at_least(1, loaders=loaders, stripe=stripe)
        shares: list[list[SourceStripe]] = [[] for _ in range(loaders)]
        for number, name in enumerate(sources):
            having = range(number % loaders, loaders, max(len(sources), 1))
            if loaders < len(sources):
                having = range(number % loaders, number % loaders + 1)
            for part, loader in enumerate(having):
                share = SourceStripe(source=name, part=part, parts=len(having), stripe=stripe)
                shares[loader].append(share)
        return cls(tuple(sources), tuple(map(tuple, shares)))

    @cached_property
    def of_source(self) -> dict[str, list[tuple[int, SourceStripe]]]:
        """By name, the loaders that have some of it."""
        having: dict[str, list[tuple[int, SourceStripe]]] = {name: [] for name in self.sources}
        for loader, shares in enumerate(self.shares):
            for share in shares:
                having[share.source].append((loader, share))
        return having

    def owners(self, source: npt.NDArray[np.integer[Any]], position: Int64Array) -> Int64Array:
        """[samples] the loader that has each, by numbers of sources and positions."""
        owner: Int64Array = self._first_owner[source]
        for number in self._shared:
            rows = np.flatnonzero(source == number)
            for loader, share in self.of_source[self.sources[number]]:
                owner[rows[share.owns(position[rows])]] = loader
        return owner

    @cached_property
    def _first_owner(self) -> Int64Array:
        """[sources] the first loader that has some of each."""
        return np.array([self.of_source[name][0][0] for name in self.sources], np.int64)

    @cached_property
    def _shared(self) -> list[int]:
        """Sources that several loaders have."""
        return [n for n, name in enumerate(self.sources) if len(self.of_source[name]) > 1]


def works_of(
    plan: LoadingPlan, layout: SourceLayout, keys: Sequence[StageKey] | None = None
) -> list[LoaderWork]:
    """[loaders] the share of each in a plan.

    Args:
        keys: buckets whose samples are to be staged; None is all of them.
    """
    samples = plan.samples
    owner = layout.owners(samples.source, samples.position)
    order = ((owner * len(layout.sources) + samples.source) << 40) + samples.position
    ends = np.bincount(owner, minlength=len(layout.shares)).cumsum()
    return [
        LoaderWork(
            step=plan.step,
            rows=rows,
            samples=samples[rows],
            bucket=_only(plan.assignment.bucket[rows], None, keys),
            subplans={
                name: _only(subplan.assignment.bucket[rows], name, keys)
                for name, subplan in plan.subplans.items()
            },
        )
        for rows in np.split(order.argsort(), ends[:-1])
    ]


def _only(
    bucket: npt.NDArray[np.integer[Any]], subplan: str | None, keys: Sequence[StageKey] | None
) -> Int64Array:
    """Buckets of samples, -1 for those that are not among the keys."""
    if keys is not None:
        wanted = [number for name, number in keys if name == subplan]
        bucket = np.where(np.isin(bucket, wanted), bucket, -1)
    return bucket.astype(np.int64)
