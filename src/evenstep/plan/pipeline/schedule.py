"""What a pipeline schedule makes every stage do, and when each pass ends.

A stage runs its forward and backward passes one at a time, in an order fixed in advance. A pass
begins when the one before it on the stage has ended and what it needs has arrived: a forward pass
needs the same micro-batch's forward pass through the part of the model before, a backward pass the
backward pass through the part behind, the first of them the last forward pass. So the end of a
pass is a longest path in a graph that depends on the schedule and the number of micro-batches, not
on their costs: it is built once, and then every set of times takes one walk through it.

Invariant: passes are numbered so that what a pass waits for has a lower number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.argument_checks import check_at_least

_Pass = tuple[bool, int, int]
"""Whether the pass is backward, its micro-batch, and the part of the model."""


@dataclass(frozen=True, kw_only=True)
class PipelineSchedule:
    """1F1B, plain or interleaved, in the order in which Megatron-LM runs it.

    The model is cut into ``stages * chunks`` parts; stage s holds the parts s, s + stages, ...
    """

    stages: int = 4
    chunks: int = 1
    """Parts of each stage, Megatron's virtual stages. 1 is plain 1F1B, more is interleaved."""
    consecutive: int | None = None
    """Micro-batches that a stage takes through a chunk before it turns to the next one, Megatron's
    ``microbatch_group_size_per_vp_stage``. None takes as many as there are stages."""
    backward: float = 2.0
    """Time of a backward pass over that of the forward pass."""
    latency: float = 0.0
    """Time from the end of a pass to the arrival of its output on another stage, in the unit of the
    forward times. The sender continues meanwhile."""

    def __post_init__(self) -> None:
        check_at_least(1, stages=self.stages, chunks=self.chunks)
        check_at_least(self.stages, consecutive=self.consecutive)
        for name, value in (("backward", self.backward), ("latency", self.latency)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"{name}={value} must be finite and not negative")

    @property
    def parts(self) -> int:
        return self.stages * self.chunks

    def graph(self, micro_batches: int) -> PassGraph:
        """
        Raises:
            ConfigurationError: the schedule does not run this number of micro-batches.
        """
        check_at_least(1, micro_batches=micro_batches)
        run = self.stages if self.consecutive is None else self.consecutive
        if self.chunks > 1 and (micro_batches < run or 0 < micro_batches % run < self.stages):
            raise ConfigurationError(
                f"micro_batches={micro_batches} do not suit an interleaved schedule that takes "
                f"{run} through a chunk at a time: there must be at least {run}, and the last "
                f"round must have at least {self.stages}, one for each stage; use a multiple of "
                f"{run}, or chunks=1"
            )
        return _graph(self.stages, self.chunks, run, micro_batches)

    def forward_times(self, forward: npt.ArrayLike) -> Float64Array:
        """[micro-batches, parts] time of each forward pass.

        Args:
            forward: [micro-batches] time on each stage, shared evenly by its chunks; or
                [micro-batches, parts] time of each pass. At least one micro-batch.

        Raises:
            ConfigurationError: another shape, or a time that is negative or not finite.
        """
        times = np.asarray(forward, np.float64)
        if times.ndim == 1:
            times = np.repeat(times[:, None] / self.chunks, self.parts, axis=1)
        if times.ndim != 2 or times.shape[1] != self.parts or not len(times):
            raise ConfigurationError(
                f"forward times of shape {np.shape(forward)} must be [micro-batches] or "
                f"[micro-batches, {self.parts}]: one column for each part of the model, "
                f"stages={self.stages} times chunks={self.chunks}"
            )
        if not (np.isfinite(times).all() and times.min() >= 0):
            raise ConfigurationError(
                "forward times must be finite and not negative, and they lie between "
                f"{times.min()} and {times.max()}"
            )
        return times

    @staticmethod
    def check_order(order: npt.ArrayLike, micro_batches: int) -> Int64Array:
        """[micro-batches] the order, as int64.

        Raises:
            ConfigurationError: it does not name each micro-batch once.
        """
        places = np.asarray(order)
        if sorted(places.tolist()) != list(range(micro_batches)):
            raise ConfigurationError(
                f"order={places.tolist()} must name each of {micro_batches} micro-batches once, "
                f"from 0 to {micro_batches - 1}"
            )
        return places.astype(np.int64, copy=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class PassGraph:
    """Every pass of a step and what it waits for. All arrays are [passes].

    Numbers run up level by level: the passes of a level wait only for those of lower levels.
    Number `passes`, one more than the last, stands for no pass, which ends at time 0.
    """

    backward: npt.NDArray[np.bool_]
    micro_batch: Int64Array
    part: Int64Array
    stage: Int64Array
    before: Int64Array
    """Number of the pass before it on its stage."""
    needs: Int64Array
    """Number of the pass whose output it needs."""
    crosses: Float64Array
    """1 where that output comes from another stage, else 0."""
    levels: tuple[tuple[slice, Int64Array], ...]
    """Numbers of the passes of each level, and [2, passes of the level] their `before`, `needs`."""
    waits: tuple[tuple[int, int], ...]
    """[passes] `before` and `needs` once more, side by side, for the walk in plain Python."""

    def __len__(self) -> int:
        return len(self.part)

    def times(self, schedule: PipelineSchedule, forward: Float64Array) -> Float64Array:
        """[passes] time of each pass, from [micro-batches, parts] forward times."""
        scale = np.where(self.backward, schedule.backward, 1.0)
        times: Float64Array = forward[self.micro_batch, self.part] * scale
        return times

    def times_of_orders(
        self, schedule: PipelineSchedule, forward: Float64Array, orders: Int64Array
    ) -> Float64Array:
        """[passes, orders] `times` where the micro-batches run in other orders.

        Args:
            orders: [orders, micro-batches] which micro-batch comes in each place.
        """
        places = np.ascontiguousarray(orders.T)
        if (forward == forward[:, :1]).all():
            ahead = forward[places, 0]
            both = np.concatenate([ahead, ahead * schedule.backward])
            alike: Float64Array = both.take(self.backward * len(forward) + self.micro_batch, axis=0)
            return alike
        scale = np.where(self.backward, schedule.backward, 1.0)
        times: Float64Array = forward[places[self.micro_batch], self.part[:, None]]
        times *= scale[:, None]
        return times

    def ends(self, times: Float64Array, latency: float) -> list[float]:
        """[passes] end of each pass, counted from the beginning of the step."""
        ends = [0.0] * (len(times) + 1)
        lags = (self.crosses * latency).tolist()
        for number, ((before, needs), lag, time) in enumerate(
            zip(self.waits, lags, times.tolist())
        ):
            free = ends[before]
            ready = ends[needs] + lag
            ends[number] = (free if free > ready else ready) + time
        return ends[:-1]

    def makespans(self, times: Float64Array, latency: float) -> Float64Array:
        """[sets] end of the last pass for many sets of times at once.

        Args:
            times: [passes, sets].
        """
        ends = np.zeros((len(self) + 1, times.shape[1]))
        lags = (self.crosses * latency)[:, None]
        for here, waits in self.levels:
            free, ready = ends.take(waits, axis=0)  # [passes of the level, sets] each
            if latency:
                ready += lags[here]
            np.maximum(free, ready, out=free)
            np.add(free, times[here], out=ends[here])
        last: Float64Array = ends.max(axis=0)
        return last


def _stage_order(
    stage: int, stages: int, chunks: int, run: int, micro_batches: int
) -> Iterator[_Pass]:
    """The passes of a stage, in the order in which it runs them."""
    # A stage turns to the next chunk after `run` micro-batches, and to the next round of them after
    # the last chunk. Backward it goes through the chunks from the last to the first.
    turns = [
        (micro_batch, chunk)
        for first in range(0, micro_batches, run)
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + run, micro_batches))
    ]
    ahead = stages - stage - 1
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * run
    ahead = min(ahead, len(turns))
    for turn in range(len(turns) + ahead):
        if turn < len(turns):
            micro_batch, chunk = turns[turn]
            yield False, micro_batch, chunk * stages + stage
        if turn >= ahead:
            micro_batch, chunk = turns[turn - ahead]
            yield True, micro_batch, (chunks - 1 - chunk) * stages + stage


@lru_cache(maxsize=64)
def _graph(stages: int, chunks: int, run: int, micro_batches: int) -> PassGraph:
    """Numbers passes level by level: in each, the next pass of every stage that is ready."""
    queues = [list(_stage_order(s, stages, chunks, run, micro_batches)) for s in range(stages)]
    place = [0] * stages
    numbers: dict[_Pass, int] = {}
    rows: list[tuple[_Pass, int]] = []
    levels = []
    total = sum(map(len, queues))
    while len(rows) < total:
        begin = len(rows)
        for stage, queue in enumerate(queues):
            if place[stage] < len(queue):
                needed = _needed(queue[place[stage]], stages * chunks)
                # What was numbered in this level has not ended yet.
                if needed is None or numbers.get(needed, begin) < begin:
                    rows.append((queue[place[stage]], stage))
        if len(rows) == begin:
            raise InvariantError(
                f"stages={stages}, chunks={chunks}, {run} at a time: the stages of "
                f"{micro_batches} micro-batches wait for each other"
            )
        for number in range(begin, len(rows)):
            numbers[rows[number][0]] = number
            place[rows[number][1]] += 1
        levels.append(slice(begin, len(rows)))
    before, needs, crosses = [], [], []
    latest = [total] * stages
    for number, (row, stage) in enumerate(rows):
        needed = _needed(row, stages * chunks)
        before.append(latest[stage])
        needs.append(total if needed is None else numbers[needed])
        crosses.append(float(needed is not None and needed[2] % stages != stage))
        latest[stage] = number
    waits = np.array([before, needs], np.int64)
    return PassGraph(
        backward=np.array([row[0] for row, _ in rows]),
        micro_batch=np.array([row[1] for row, _ in rows], np.int64),
        part=np.array([row[2] for row, _ in rows], np.int64),
        stage=np.array([stage for _, stage in rows], np.int64),
        before=waits[0],
        needs=waits[1],
        crosses=np.array(crosses),
        levels=tuple((here, waits[:, here].copy()) for here in levels),
        waits=tuple(zip(before, needs)),
    )


def _needed(row: _Pass, parts: int) -> _Pass | None:
    """The pass whose output a pass needs; None for a first forward pass."""
    backward, micro_batch, part = row
    if backward:
        return (True, micro_batch, part + 1) if part < parts - 1 else (False, micro_batch, part)
    return (False, micro_batch, part - 1) if part else None
