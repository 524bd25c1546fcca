"""Which loader owns which samples.

Sources are assigned to loaders in turn. If there are more loaders than sources, several share a
source: its positions are cut into stripes, which they own in turn. Plans do not depend on the owner
of a sample, so they are the same for any layout.
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
from evenstep.strategy import LoaderTask, LoadingPlan

STRIPE = 64
"""Consecutive positions in a stripe."""

StageKey = tuple[str | None, int]
"""Where samples are staged within a step: the name of the subplan (None for the plan itself) and
the bucket."""


@dataclass(frozen=True, kw_only=True)
class SourceStripe:
    """The positions of a source that a loader owns: stripe `part`, `part + parts`, and so on."""

    source: str
    part: int = 0
    parts: int = 1
    stripe: int = STRIPE

    def owns(self, positions: Int64Array) -> npt.NDArray[np.bool_]:
        """[positions] whether each is owned."""
        owned: npt.NDArray[np.bool_] = (positions // self.stripe) % self.parts == self.part
        return owned

    def next_owned(self, position: int) -> int:
        """The first owned position from this one on."""
        stripe, part = position // self.stripe, (position // self.stripe) % self.parts
        ahead = (self.part - part) % self.parts
        return position if not ahead else (stripe + ahead) * self.stripe


@dataclass(frozen=True)
class SourceLayout:
    """The shares of sources that each loader owns."""

    sources: tuple[str, ...]
    shares: tuple[tuple[SourceStripe, ...], ...]
    """[loaders] one for each source that the loader has a part of."""

    @classmethod
    def of(cls, sources: Sequence[str], loaders: int, *, stripe: int = STRIPE) -> SourceLayout:
        """Assigns sources to loaders in turn, or loaders to sources if there are more loaders.

        Raises:
            ConfigurationError: less than one loader, or stripes of less than one position.
        """
        check_at_least(1, loaders=loaders, stripe=stripe)
        shares: list[list[SourceStripe]] = [[] for _ in range(loaders)]
        for number, name in enumerate(sources):
            owners = range(number % loaders, loaders, max(len(sources), 1))
            if loaders < len(sources):
                owners = range(number % loaders, number % loaders + 1)
            for part, loader in enumerate(owners):
                share = SourceStripe(source=name, part=part, parts=len(owners), stripe=stripe)
                shares[loader].append(share)
        return cls(tuple(sources), tuple(map(tuple, shares)))

    @cached_property
    def of_source(self) -> dict[str, list[tuple[int, SourceStripe]]]:
        """By name of the source, the loaders that own parts of it, and the parts."""
        owners: dict[str, list[tuple[int, SourceStripe]]] = {name: [] for name in self.sources}
        for loader, shares in enumerate(self.shares):
            for share in shares:
                owners[share.source].append((loader, share))
        return owners

    def owners(self, source: npt.NDArray[np.integer[Any]], position: Int64Array) -> Int64Array:
        """[samples] the loader that owns each, given its source's number and its position."""
        owner: Int64Array = self._first_owner[source]
        for number in self._shared:
            rows = np.flatnonzero(source == number)
            for loader, share in self.of_source[self.sources[number]]:
                owner[rows[share.owns(position[rows])]] = loader
        return owner

    @cached_property
    def _first_owner(self) -> Int64Array:
        """[sources] the first loader that owns a part of each."""
        return np.array([self.of_source[name][0][0] for name in self.sources], np.int64)

    @cached_property
    def _shared(self) -> list[int]:
        """Numbers of the sources that several loaders share."""
        return [n for n, name in enumerate(self.sources) if len(self.of_source[name]) > 1]


def loader_tasks(
    plan: LoadingPlan, layout: SourceLayout, keys: Sequence[StageKey] | None = None
) -> list[LoaderTask]:
    """[loaders] the part of a plan that each loader carries out.

    Args:
        keys: the buckets that matter; None is all of them.
    """
    rows = np.arange(len(plan)) if keys is None else rows_of(plan, keys)
    source, position = plan.samples.source[rows], plan.samples.position[rows]
    owner = layout.owners(source, position)  # [rows]
    # [rows] by owner, then by source and position, in one sort: positions are below 2 ** 40
    order = (((owner * len(layout.sources) + source) << 40) + position).argsort()
    ends = np.bincount(owner, minlength=len(layout.shares)).cumsum()
    return [LoaderTask.of(plan, rows[part]) for part in np.split(order, ends[:-1])]


def rows_of(plan: LoadingPlan, keys: Sequence[StageKey]) -> Int64Array:
    """The rows of a plan in some buckets."""
    wanted = np.zeros(len(plan), np.bool_)
    for name, bucket in keys:
        each = plan if name is None else plan.subplans[name]
        wanted |= each.assignment.bucket == bucket
    return np.flatnonzero(wanted)
