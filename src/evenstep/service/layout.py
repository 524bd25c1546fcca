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

from evenstep.graph import LoaderWork, LoadingPlan, loader_do_plan
from evenstep.plan.checks import check_at_least

__all__ = ["Layout", "SourceShare", "work_of"]

Int64Array = npt.NDArray[np.int64]

STRIPE = 64
"""Positions of a stripe."""


@dataclass(frozen=True, kw_only=True)
class SourceShare:
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
class Layout:
    """Shares of sources by loader."""

    sources: tuple[str, ...]
    shares: tuple[tuple[SourceShare, ...], ...]
    """[loaders]"""

    @classmethod
    def deal(cls, sources: Sequence[str], loaders: int, *, stripe: int = STRIPE) -> Layout:
        """Sources to loaders in turn, or loaders to sources where there are more of them.

        Raises:
            ConfigurationError: less than one loader or position.
        """
        check_at_least(1, loaders=loaders, stripe=stripe)
        shares: list[list[SourceShare]] = [[] for _ in range(loaders)]
        for number, name in enumerate(sources):
            having = range(number % loaders, loaders, max(len(sources), 1))
            if loaders < len(sources):
                having = range(number % loaders, number % loaders + 1)
            for part, loader in enumerate(having):
                share = SourceShare(source=name, part=part, parts=len(having), stripe=stripe)
                shares[loader].append(share)
        return cls(tuple(sources), tuple(map(tuple, shares)))

    @cached_property
    def of_source(self) -> dict[str, list[tuple[int, SourceShare]]]:
        """By name, the loaders that have some of it."""
        having: dict[str, list[tuple[int, SourceShare]]] = {name: [] for name in self.sources}
        for loader, shares in enumerate(self.shares):
            for share in shares:
                having[share.source].append((loader, share))
        return having

    def owners(self, source: npt.NDArray[np.integer[Any]], position: Int64Array) -> Int64Array:
        """[samples] the loader that has each, by numbers of sources and positions."""
        owner = np.empty(len(source), np.int64)
        for number in np.unique(source).tolist():
            rows = np.flatnonzero(source == number)
            for loader, share in self.of_source[self.sources[number]]:
                owner[rows[share.owns(position[rows])]] = loader
        return owner


def work_of(plan: LoadingPlan, shares: Sequence[SourceShare]) -> LoaderWork:
    """The share of a plan of the loader that has these shares of sources."""
    work = loader_do_plan(plan, [share.source for share in shares])
    if all(share.parts == 1 for share in shares):
        return work
    by_name = {share.source: share for share in shares}
    mine = np.zeros(len(work.rows), np.bool_)
    for number in np.unique(work.samples.source).tolist():
        rows = np.flatnonzero(work.samples.source == number)
        share = by_name[work.samples.sources[number]]
        mine[rows] = share.owns(work.samples.position[rows])
    kept = np.flatnonzero(mine)
    return LoaderWork(
        step=work.step,
        rows=work.rows[kept],
        samples=work.samples[kept],
        bucket=work.bucket[kept],
        subplans={name: bucket[kept] for name, bucket in work.subplans.items()},
    )
