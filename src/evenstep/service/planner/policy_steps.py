"""`PolicySteps`: the steps that a policy makes of a mixture, for a planner that knows all ranks.

    draws of the mixture  ->  one stream of samples  ->  windows of the ranks  ->  steps
    (evenstep.mixture)        (here)                     (protocol.all_ranks)      (plans)

Data-parallel rank r of the mesh is rank r of a `DataLoader`'s group, and gets what that rank would
get of the same stream. The mixture is drawn as windows need samples, ahead of the step that trains
on them. A step of the service is an update: its micro-batches are steps of the policy, or those of
a policy that forms micro-batches itself.

A state has the samples that are drawn and not trained on, and the round that they are planned in;
another number of ranks, or another policy, begins with these samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import GroupShapes
from evenstep.errors import SampleError
from evenstep.mixture.mixture_options import REPEAT
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.too_long import too_long
from evenstep.plan.value_checks import AUTO, COUNT, check_schema, require
from evenstep.protocol.all_ranks import AllRanks, RoundOfAll, StepOfAll
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.window_buffer import COLUMNS, RoundStart
from evenstep.service.job.job import Job
from evenstep.service.job.sample_measure import MEDIA, SUPERVISED
from evenstep.strategy import Assignment, LoadingPlan

Draw = Callable[[], tuple[SampleTable, Mapping[str, float]] | None]

_SHARED = ("round", "step", "window_size", "next_entry")
_ARRAYS = ("numbers", "ages", "entries")
_SCHEMA = {
    "policy": str,
    "total": COUNT,
    "given": COUNT,
    "rows": [COUNT],
    "placed": [COUNT],
    "drawn": COUNT,
    "weights": {str: float},
    **dict.fromkeys(_SHARED, COUNT),
    "ranks": [Mapping],
}
_OF_RANK = {
    "taken": COUNT,
    "quota": COUNT,
    "seen_lengths": [COUNT],
    **{name: [COUNT] for name in _ARRAYS},
}


@dataclass(frozen=True, kw_only=True)
class Windows:
    """All samples that may still be trained on, between two steps. Never changed, only replaced."""

    table: SampleTable
    """Samples of the stream that the round, or a later one, can have."""
    entries: Int64Array
    """[samples] their entries in the stream, ascending."""
    drawn: int
    """Entries of the stream so far."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By source, those of the last draw."""
    begun: RoundOfAll | None = None
    """The round of the last steps; None before the first."""
    given: int = 0
    """Its steps that plans have."""
    placed: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Their samples' entries, ascending."""

    @classmethod
    def of(cls, table: SampleTable) -> Windows:
        """Samples to begin with."""
        return cls(table=table, entries=np.arange(len(table)), drawn=len(table))

    @property
    def waiting(self) -> SampleTable:
        """Samples that no plan has placed."""
        return self.table[~np.isin(self.entries, self.placed)]

    def rows(self, entries: Int64Array) -> Int64Array:
        return np.searchsorted(self.entries, entries)

    def columns(self, entries: Int64Array, counted: Sequence[str]) -> Int64Array:
        """[7, entries] what `window_buffer.COLUMNS` names.

        Args:
            counted: modalities that add up to a sample's tokens.
        """
        table = self.table[self.rows(entries)]
        columns = np.zeros((len(COLUMNS), len(table)), np.int64)
        columns[0], columns[1] = table.tokens(counted), table.lengths[SUPERVISED]
        for number, name in enumerate(MEDIA, 2):
            columns[number] = table.lengths.get(name, 0)
        return columns

    # JSON

    def to_dict(self, job: Job) -> dict[str, Any] | None:
        """All but the table; None before the first step."""
        if self.begun is None:
            return None
        first = self.begun.starts[0]
        ranks = [
            {"taken": start.taken, "quota": start.quota, "seen_lengths": list(start.seen_lengths)}
            | {name: getattr(start, name).tolist() for name in _ARRAYS}
            for start in self.begun.starts
        ]
        return {
            "policy": _rule(job),
            "total": self.begun.total,
            "given": self.given,
            "rows": self.entries.tolist(),
            "placed": self.placed.tolist(),
            "drawn": self.drawn,
            "weights": dict(self.weights),
            **{name: getattr(first, name) for name in _SHARED},
            "ranks": ranks,
        }

    @classmethod
    def from_dict(cls, table: SampleTable, saved: Mapping[str, Any] | None, job: Job) -> Windows:
        """Inverse of `to_dict` for the same ranks and policy; else the samples that wait.

        Raises:
            ConfigurationError, KeyError, TypeError, ValueError: it is damaged.
        """
        if saved is None:
            return cls.of(table)
        check_schema(saved, _SCHEMA)
        kept = cls(
            table=table,
            entries=np.array(saved["rows"], np.int64),
            drawn=saved["drawn"],
            weights=saved["weights"],
            given=saved["given"],
            placed=np.array(saved["placed"], np.int64),
        )
        require(len(kept.entries) == len(table), "rows", len(table))
        if saved["policy"] != _rule(job) or len(saved["ranks"]) != job.tree.sizes["DP"]:
            return cls.of(kept.waiting)
        starts = tuple(kept._start(saved, rank, job) for rank in range(len(saved["ranks"])))
        return replace(kept, begun=RoundOfAll(starts=starts, total=saved["total"]))

    def _start(self, saved: Mapping[str, Any], rank: int, job: Job) -> RoundStart:
        own = saved["ranks"][rank]
        check_schema(own, _OF_RANK)
        numbers, ages, entries = (np.array(own[name], np.int64) for name in _ARRAYS)
        held = entries[: len(numbers)] if len(entries) else numbers * len(saved["ranks"]) + rank
        require(bool(np.isin(held, self.entries).all()), "entries", rank)
        return RoundStart(
            numbers=numbers,
            ages=ages,
            entries=entries,
            columns=self.columns(held, job.measures.counted),
            taken=own["taken"],
            quota=own["quota"],
            seen_lengths=(own["seen_lengths"][0], own["seen_lengths"][1]),
            **{name: saved[name] for name in _SHARED},
        )


def _rule(job: Job) -> str:
    """Equal for jobs that make the same steps of the same stream."""
    policy = job.policy
    return "" if policy is None else f"{policy.fingerprint} x {job.micro_batches}"


class PolicySteps:
    """See the module docstring."""

    def __init__(self, job: Job, draw: Draw, windows: Windows) -> None:
        """
        Args:
            job: with a policy.
            draw: the next draw of the mixture and its weights; None after its end.
            windows: to begin with.
        """
        assert job.policy is not None
        self._job, self._policy, self._draw = job, job.policy, draw
        self.windows = windows
        """The state before the next plan."""
        self.endless = job.draws.stop == REPEAT
        self._accumulate = job.micro_batches // self._policy.micro_batches
        options = EpochOptions(
            policy=self._policy,
            world_size=job.tree.sizes["DP"],
            buffer_size=AUTO,
            exhausted="stop",
            accumulate=self._accumulate,
            seed=job.seed,
        )
        self._ranks = AllRanks(options, self, begin=windows.begun)
        self._steps: deque[StepOfAll] = deque()
        if windows.begun is not None:
            self._steps.extend(self._ranks.next_round()[windows.given :])
            self.windows = replace(self.windows, begun=self._ranks.begun)

    # As `evenstep.protocol.all_ranks.SharedStream`

    def reach(self, count: int) -> int:
        now, tables, drawn = self.windows, [], self.windows.drawn
        while drawn < count and (more := self._draw()) is not None:
            table, weights = more
            self._check(table)
            now = replace(now, weights=weights)
            tables.append(table)
            drawn += len(table)
        if tables:
            table = SampleTable.concatenate([now.table, *tables])
            entries = np.append(now.entries, np.arange(now.drawn, drawn))
            self.windows = replace(now, table=table, entries=entries, drawn=drawn)
        return drawn

    def columns(self, entries: Int64Array) -> Int64Array:
        columns: Int64Array = self.windows.columns(entries, self._job.measures.counted).T
        return columns

    def _check(self, table: SampleTable) -> None:
        if not len(table):
            return
        counted, most = self._job.measures.counted, self._policy.max_length
        tokens = table.tokens(counted)
        shortest, longest = int(tokens.argmin()), int(tokens.argmax())
        if tokens[shortest] < 1:
            raise SampleError(
                f"sample {table.identity(shortest)} has no {'+'.join(counted)}; name all that the "
                "model works on as counted= of MeasureOptions, or filter it in the source"
            )
        if most is not None and tokens[longest] > most:
            raise too_long(f"sample {table.identity(longest)}", int(tokens[longest]), most)

    # Plans

    def plan(self, step: int) -> LoadingPlan | None:
        """The next plan; None where the mixture has ended and some rank would have no samples.

        Args:
            step: its number.
        """
        made: list[StepOfAll] = []
        given = self.windows.given
        while len(made) < self._accumulate:
            if not self._steps:
                self._steps.extend(self._ranks.next_round())
                given = 0
            if not self._steps:
                break
            made.append(self._steps.popleft())
            given += 1
        ranks = range(self._job.tree.sizes["DP"])
        groups = _even([[group for one in made for group in one.groups[rank]] for rank in ranks])
        if groups is None:
            return None
        costs = np.array([one.costs for one in made]).sum(axis=0)
        plan = self._plan_of(step, groups, costs)
        self._move_on(given, made)
        return plan

    def _plan_of(
        self, step: int, groups: Sequence[Sequence[Int64Array]], costs: Float64Array
    ) -> LoadingPlan:
        """
        Args:
            groups: [ranks][micro-batches] entries of each.
            costs: [ranks]
        """
        flat = [group for own in groups for group in own]
        counts = np.array([len(group) for group in flat])
        entries = np.concatenate(flat)
        order = entries.argsort()  # as they were drawn
        number = np.repeat(np.arange(len(flat)), counts)[order]
        index = np.arange(len(entries)) - np.repeat(counts.cumsum() - counts, counts)
        bucket, micro_batch = np.divmod(number, len(groups[0]))
        # A sample's cost is its share of its rank's, by what samples would cost alone.
        known = self.windows.columns(entries[order], self._job.measures.counted)
        vision = known[2:5] if self._policy.counts_patches else None
        shapes = GroupShapes.measure(known[0], np.arange(len(order) + 1), vision)
        alone = self._policy.cost(shapes, packed=self._policy.packed)
        size = {"buckets": len(groups), "micro_batches": len(groups[0])}
        assignment = Assignment.of(bucket, micro_batch, index[order], **size)
        return LoadingPlan(
            step=step,
            samples=self.windows.table[self.windows.rows(entries[order])],
            tree=self._job.tree,
            axis="DP",
            assignment=assignment,
            costs=alone * (costs / np.bincount(bucket, alone))[bucket],
            modality=tuple(self._job.measures.counted),
            broadcast_at=tuple(self._job.broadcast_at),
            max_tokens=self._policy.max_length,
            methods={"policy": self._policy.name},
            weights=self.windows.weights,
        )

    def _move_on(self, given: int, made: Sequence[StepOfAll]) -> None:
        """Notes what was placed, and forgets what no later step can have.

        Args:
            given: steps of the last round that plans have.
        """
        now, begun = self.windows, self._ranks.begun
        assert begun is not None
        placed = [group for one in made[-given:] for own in one.groups for group in own]
        if begun is now.begun:
            placed.append(now.placed)
        else:
            kept = begun.needed(now.entries)
            now = replace(now, table=now.table[now.rows(kept)], entries=kept)
        self.windows = replace(
            now, begun=begun, given=given, placed=np.sort(np.concatenate(placed))
        )


def _even(groups: Sequence[list[Int64Array]]) -> Sequence[list[Int64Array]] | None:
    """As many micro-batches on every rank: groups of ranks that have fewer are divided. None where
    a rank has too few samples.

    Args:
        groups: [ranks][micro-batches] entries of each.
    """
    most = max(map(len, groups))
    for own in groups:
        while len(own) < most:
            largest = max(range(len(own)), key=lambda k: len(own[k]), default=None)
            if largest is None or len(own[largest]) < 2:
                return None
            half = len(own[largest]) // 2
            own[largest : largest + 1] = [own[largest][:half], own[largest][half:]]
    return groups if most else None
