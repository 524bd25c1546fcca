"""`LoaderLayout`: the loaders of a job, what each has and needs, and what would starve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.strategy.loaders.load_model import ROUNDING, LoaderLimits, LoadModel, Piece

STRIPE = 16
"""Consecutive positions in a stripe."""


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


@dataclass(frozen=True, kw_only=True)
class PlannedLoader:
    """One loader."""

    shares: tuple[SourceStripe, ...]
    workers: int
    """Processes that transform; 0 if the loader does."""
    buffer_bytes: int
    """Bytes of prepared samples that it may hold."""
    memory: int
    """Bytes that it needs, workers included."""
    seconds: float
    """Of its busiest process for a step, in the step that takes longest."""


@dataclass(frozen=True)
class Shortage:
    """A limit that cannot be kept."""

    what: str
    """The loader, or all of them."""
    needs: str
    has: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class LoaderLayout:
    """Which loader has which sources, with how many workers. See `packed`."""

    sources: tuple[str, ...]
    loaders: tuple[PlannedLoader, ...]
    step_seconds: float
    """That it was planned for."""
    cores: float = 0.0
    """Processors that all loaders together keep busy."""
    shortages: tuple[Shortage, ...] = ()

    @classmethod
    def of(cls, model: LoadModel, groups: Sequence[Sequence[Piece]]) -> LoaderLayout:
        """
        Args:
            groups: [loaders] what each has. All parts of a source, each once.
        """
        limits, most = model.limits, model.draws.max(axis=0).tolist()  # [sources]
        filled = [sorted(group) for group in groups if group]
        vectors = np.array([model.vectors(group).sum(axis=0) for group in filled])
        needs = model.needs(vectors)
        given = Counter[int]()  # by source, parts that have an owner
        loaders = []
        for group, workers, seconds, memory, needed in zip(
            filled, *(each.tolist() for each in needs[:3]), vectors[:, 2].tolist()
        ):
            shares = []
            for source, parts in group:
                name, stripe = model.sources[source], _stripe(most[source], parts)
                share = SourceStripe(source=name, part=given[source], parts=parts, stripe=stripe)
                shares.append(share)
                given[source] += 1
            room = min(limits.memory - memory + needed, limits.buffer_bytes)
            loaders.append(
                PlannedLoader(
                    shares=tuple(shares),
                    workers=workers,
                    buffer_bytes=max(int(max(room, needed)), 1),
                    memory=int(memory),
                    seconds=seconds,
                )
            )
        layout = cls(
            sources=model.sources,
            loaders=tuple(loaders),
            step_seconds=limits.step_seconds,
            cores=model.cores(vectors, needs.workers),
        )
        return replace(layout, shortages=tuple(_shortages(limits, layout)))

    @property
    def workers(self) -> int:
        """Of all loaders."""
        return sum(loader.workers for loader in self.loaders)

    @property
    def memory(self) -> int:
        """Bytes of all loaders."""
        return sum(loader.memory for loader in self.loaders)

    @property
    def seconds(self) -> float:
        """In which the loaders together prepare a step: those of the busiest process."""
        return max(loader.seconds for loader in self.loaders)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        totals = {name: getattr(self, name) for name in ("seconds", "workers", "memory")}
        return {**asdict(self), **totals}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LoaderLayout:
        """From what `as_dict` made.

        Raises:
            ConfigurationError: it is something else.
        """
        try:
            loaders = [
                PlannedLoader(
                    **{**each, "shares": tuple(SourceStripe(**share) for share in each["shares"])}
                )
                for each in given["loaders"]
            ]
            return cls(
                sources=tuple(given["sources"]),
                loaders=tuple(loaders),
                step_seconds=float(given["step_seconds"]),
                cores=float(given["cores"]),
                shortages=tuple(Shortage(**each) for each in given["shortages"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"this is no layout of loaders ({type(error).__name__}: {error}); make one by "
                "`evenstep service advise JOB --layout FILE`"
            ) from error


def _stripe(drawn: float, parts: int) -> int:
    """Positions of a stripe: few enough that loaders which share a source share each step."""
    return STRIPE if parts == 1 else max(1, min(STRIPE, round(drawn / parts)))


def _shortages(limits: LoaderLimits, layout: LoaderLayout) -> Iterator[Shortage]:
    for number, loader in enumerate(layout.loaders):
        names = ", ".join(share.source for share in loader.shares[:3])
        more = len(loader.shares) - 3
        what = f"loader {number} ({names}{f' and {more:,} more' if more > 0 else ''})"
        if loader.memory > limits.memory * ROUNDING:
            needs, has = (f"{each.memory / 2**20:,.0f} MiB" for each in (loader, limits))
            remedy = "raise the memory of a loader, or write files with smaller row groups"
            yield Shortage(what, needs, has, remedy)
        if loader.seconds > limits.seconds * ROUNDING:
            remedy = "lower what is drawn of it, raise the workers of a loader, or prepare its "
            needs, has = f"{loader.seconds:.3g} s a step", f"{limits.seconds:.3g} s"
            yield Shortage(what, needs, has, remedy + "samples beforehand")
    cores = layout.cores
    if limits.cores is not None and cores > limits.cores * ROUNDING:
        longer = limits.step_seconds * cores / limits.cores
        remedy = f"give more cores, or take {longer:.3g} s for a step"
        yield Shortage("all loaders", f"{cores:.1f} cores", f"{limits.cores:g}", remedy)


def owners_by_weight(weights: Sequence[float], loaders: int) -> list[list[int]]:
    """[sources] the loaders of each, which own equal parts of it. Every loader has some source.

    Args:
        weights: [sources] at least 0.
    """
    if loaders < len(weights):
        load = [(0.0, 0, loader) for loader in range(loaders)]  # weight, sources, number
        owners: list[list[int]] = [[] for _ in weights]
        for source in sorted(range(len(weights)), key=lambda each: -weights[each]):
            weight, count, lightest = heappop(load)
            owners[source] = [lightest]
            heappush(load, (weight + weights[source], count + 1, lightest))
        return owners
    # Each loader has one source, and the next one shares the source that needs it most.
    owners = [[source] for source in range(len(weights))]
    for loader in range(len(weights), loaders):
        neediest = max(range(len(weights)), key=lambda each: weights[each] / len(owners[each]))
        owners[neediest].append(loader)
    return owners
