"""Which loader owns which samples.

Without a planned layout, sources are assigned to loaders by weight. Several loaders may share a
source: its positions are cut into stripes, which they own in turn. Plans do not depend on the owner
of a sample, so they are the same for any layout.

`LoaderJob` is the part of a job that one Source Loader is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least
from evenstep.service.job.sample_measure import SampleMeasure
from evenstep.strategy import LoaderTask, LoadingPlan
from evenstep.strategy.loaders import STRIPE, LoaderLayout, SourceStripe, owners_by_weight

StageKey = tuple[str | None, int]
"""Where samples are staged within a step: the name of the subplan (None for the plan itself) and
the bucket."""


@dataclass(frozen=True)
class SourceLayout:
    """The shares of sources that each loader owns."""

    sources: tuple[str, ...]
    shares: tuple[tuple[SourceStripe, ...], ...]
    """[loaders] one for each source that the loader has a part of."""
    workers: tuple[int, ...] = ()
    """[loaders] processes of each that transform; empty: `ServiceMemory.workers` each."""
    buffer_bytes: tuple[int, ...] = ()
    """[loaders] bytes of prepared samples that each holds; empty: those of `ServiceMemory` each."""

    def __post_init__(self) -> None:
        for name in ("workers", "buffer_bytes"):
            given = getattr(self, name)
            if given and len(given) != len(self.shares):
                raise ConfigurationError(
                    f"{name} has {len(given)} numbers for {len(self.shares)} loaders; give one each"
                )
            for number in given:
                check_at_least(0, **{name: number})
        for loader, shares in enumerate(self.shares):
            names = [share.source for share in shares]
            if not names or len(set(names)) < len(names):
                raise ConfigurationError(
                    f"loader {loader} has the sources {names}; give it at least one, each once"
                )
        for source in self.sources:
            parts = [share for _, share in self.of_source[source]]
            cut = {(share.parts, share.stripe) for share in parts}
            numbers = sorted(share.part for share in parts)
            if len(cut) != 1 or numbers != list(range(parts[0].parts)):
                raise ConfigurationError(
                    f"the layout has parts {numbers} of source {source!r}; give each part of "
                    "parts= to one loader, all with the same stripe="
                )

    @classmethod
    def of(
        cls,
        sources: Sequence[str],
        loaders: int,
        *,
        weights: Sequence[float] | None = None,
        stripe: int = STRIPE,
    ) -> SourceLayout:
        """Assigns sources to loaders so that each has about the same weight. Loaders that would
        differ share a source.

        Args:
            weights: [sources] samples that are drawn of each, in any unit; None is equally many.

        Raises:
            ConfigurationError: less than one loader, or stripes of less than one position.
        """
        check_at_least(1, loaders=loaders, stripe=stripe)
        owners = owners_by_weight([1.0] * len(sources) if weights is None else weights, loaders)
        shares: list[list[SourceStripe]] = [[] for _ in range(loaders)]
        for name, own in zip(sources, owners):
            for part, loader in enumerate(own):
                share = SourceStripe(source=name, part=part, parts=len(own), stripe=stripe)
                shares[loader].append(share)
        return cls(tuple(sources), tuple(map(tuple, shares)))

    @classmethod
    def planned(cls, layout: LoaderLayout) -> SourceLayout:
        """As planned from measurements."""
        loaders = ((each.shares, each.workers, each.buffer_bytes) for each in layout.loaders)
        return cls(layout.sources, *zip(*loaders))

    @classmethod
    def scaled(
        cls, layout: LoaderLayout, loaders: Sequence[int], workers: Sequence[int]
    ) -> SourceLayout:
        """A planned layout of which each loader's sources are shared by several.

        Args:
            loaders: [loaders of the layout] as many; those that share a source get the most of any.
            workers: [loaders of the layout] of each of them.
        """
        made = []
        counts = _equal_where_shared(layout, list(loaders))
        for planned, own, count in zip(layout.loaders, workers, counts):
            for number in range(count):
                parts = tuple(_part_of(share, number, count) for share in planned.shares)
                made.append((parts, own, planned.buffer_bytes))
        return cls(layout.sources, *zip(*made))

    @cached_property
    def of_source(self) -> dict[str, list[tuple[int, SourceStripe]]]:
        """By name of the source, the loaders that own parts of it, and the parts."""
        owners: dict[str, list[tuple[int, SourceStripe]]] = {name: [] for name in self.sources}
        for loader, shares in enumerate(self.shares):
            for share in shares:
                if share.source not in owners:
                    raise ConfigurationError(
                        f"loader {loader} has source {share.source!r}, which is none of the job's"
                    )
                owners[share.source].append((loader, share))
        return owners

    def owners(self, source: npt.NDArray[np.integer[Any]], position: Int64Array) -> Int64Array:
        """[samples] the loader that owns each, given its source's number and its position."""
        owners = [self.of_source[name] for name in self.sources]
        owner: Int64Array = np.array([own[0][0] for own in owners], np.int64)[source]
        for number, own in enumerate(owners):
            if len(own) > 1:  # loaders share it
                rows = np.flatnonzero(source == number)
                for loader, share in own:
                    owner[rows[share.owns(position[rows])]] = loader
        return owner


def _equal_where_shared(layout: LoaderLayout, counts: list[int]) -> list[int]:
    """All parts of a source are cut alike."""
    groups: dict[str, list[int]] = {}
    for number, planned in enumerate(layout.loaders):
        for share in planned.shares:
            groups.setdefault(share.source, []).append(number)
    while True:
        most = {name: max(counts[n] for n in numbers) for name, numbers in groups.items()}
        after = [max(most[share.source] for share in each.shares) for each in layout.loaders]
        if after == counts:
            return counts
        counts = after


def _part_of(share: SourceStripe, number: int, count: int) -> SourceStripe:
    """One of `count` parts of what a loader owns of a source. Shorter stripes let them share each
    step."""
    return SourceStripe(
        source=share.source,
        part=share.part + share.parts * number,
        parts=share.parts * count,
        stripe=max(share.stripe // count, 1),
    )


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
    for key in keys:
        rows = members_of(plan, key)
        images_of = None if key[0] is None else plan.subplans[key[0]].sample_rows
        wanted[rows if images_of is None else images_of[rows]] = True
    return np.flatnonzero(wanted)


def members_of(plan: LoadingPlan, key: StageKey) -> Int64Array:
    """The rows in a bucket: of the plan or the subplan whose bucket it is."""
    name, bucket = key
    each = plan if name is None else plan.subplans[name]
    return np.flatnonzero(each.assignment.bucket == bucket)


@dataclass(frozen=True, kw_only=True)
class LoaderPart:
    """What tells the loaders of a job apart."""

    number: int
    """Which loader of the job it is."""
    shares: tuple[SourceStripe, ...]
    """[sources] the part of each that the loader owns."""
    workers: int
    buffer_bytes: int
    """Of samples that are prepared ahead, of all sources together."""

    @property
    def role(self) -> str:
        """Its name."""
        return f"Source Loader {self.number}"


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderJob(LoaderPart):
    """The part of a job that one Source Loader is sent: its own sources, and how to measure
    samples. It has nothing for which a loader's process would load torch. Made by
    `Job.for_loader`."""

    sources: tuple[Source, ...]
    measure: SampleMeasure
    columns: tuple[str, ...]
    """Names of lengths, in the order in which they are measured."""
    seed: int
    passes: int | None
    """How often each source is read; None means endlessly."""
    buffer_size: int
    """Samples of each source that are prepared ahead, if `buffer_bytes` allows."""
    decoded_bytes: int

    @property
    def part(self) -> LoaderPart:
        return LoaderPart(**{each.name: getattr(self, each.name) for each in fields(LoaderPart)})

    def of_part(self, part: LoaderPart) -> LoaderJob:
        """The job of another loader, whose sources this one has, too."""
        by_name = {source.name: source for source in self.sources}
        sources = tuple(by_name[share.source] for share in part.shares)
        return replace(self, sources=sources, **vars(part))

    def does_as(self, other: LoaderJob) -> bool:
        """Whether two loaders of a job are the same except for their number."""
        parts = replace(self.part, number=0), replace(other.part, number=0)
        return parts[0] == parts[1] and self.sources == other.sources
