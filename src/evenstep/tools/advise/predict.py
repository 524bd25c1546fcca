"""What each policy will make of the data: its figures over a synthetic epoch, and their ranges.

The value is that of one epoch in which each sample of the sketch occurs equally often (of the data
itself, where the sketch is all of it), run as `evenstep.tools.simulate` runs it. The range says how far
the sketch may have led it astray, from shorter epochs, which cost less:

- one epoch again and again, each time with lengths of a sketch that was drawn from the sketch, the
  order staying the same: the k-th shortest sample takes the place of the k-th shortest. What varies
  is what another sketch would change.
- the sketch itself in other orders. What varies is the luck of one epoch, less in longer ones.

Speed-ups are ratios of efficiency: of the useful work per unit of time, if a step takes as long as
the cost model says of its largest rank. `LEFT_OUT` says what that leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.policy import Policy
from evenstep.plan.rng import Stream, generator
from evenstep.tools.advise.figure_range import Range, around, spread
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.recommend import Setup
from evenstep.tools.simulate import deal, simulate

__all__ = ["BASELINE", "FIGURES", "LEFT_OUT", "Build", "Prediction", "predict"]


BASELINE = "fixed-batch"
"""What speed-ups are relative to."""

FIGURES = ("padding", "imbalance", "efficiency", "samples_per_step", "tokens_per_step")
"""Attributes of `SimulationResult`. Samples and tokens are those of all ranks together."""

LEFT_OUT = (
    "small batches, which do not fill an accelerator and take longer than their cost says",
    "communication between ranks and the optimizer's step, which fewer, larger steps need less of",
    "loading and preparing samples, where the trainer has to wait for it",
    "vision encoders and all else whose work does not go with tokens",
    "what batches of other sizes do to the loss: compare it, and the learning rate, in training",
    "the chat template and augmentation, where the lengths were taken without them",
)
"""What predictions leave out, one clause each."""

_PER_RANK, _SHORT_PER_RANK = 8192, 1024  # samples of an epoch, and of one that only tells spread
_ALL_RANKS, _SHORT_ALL_RANKS = 2**20, 2**16  # and of all ranks, at most: for large worlds
_WINDOWS = 4  # that an epoch is long at least, so that its end does not count for much
_SKETCHES, _ORDERS = 8, 5
_STUDENT = 1.895  # 95th percentile of Student's t with _SKETCHES - 1 degrees of freedom


Build = Callable[[PolicyOptions], Policy]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The figures of one policy."""

    policy: str
    """By its name on the command line."""
    options: Mapping[str, Any]
    needs_lengths: bool
    """Whether it works only where all lengths are known before training."""
    packed: bool
    figures: Mapping[str, Range]
    """By the names in `FIGURES`, and "speedup" over the baseline. Empty where it cannot run."""
    problem: str | None = None
    """Why it cannot run on this data."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values. Every figure is there; None where the policy cannot run."""
        figures: dict[str, Any] = dict.fromkeys((*FIGURES, "speedup"))
        figures.update({name: value.as_dict() for name, value in self.figures.items()})
        return {
            "policy": self.policy,
            "needs_lengths": self.needs_lengths,
            "packed": self.packed,
            "options": dict(self.options),
            **figures,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True)
class _World:
    """What all policies are run in."""

    ranks: int
    setup: Setup
    cost: Cost

    def run(self, build: Build, lengths: Int64Array, seed: int) -> tuple[Policy, Float64Array]:
        """The policy and its `FIGURES` over an epoch of `lengths`."""
        policy = build(self.setup.options(self.cost, lengths))
        shards = deal(len(lengths), self.ranks, seed)
        result = simulate(
            policy,
            [lengths[shard] for shard in shards],
            buffer_size=self.setup.buffer_size,
            seed=seed,
            cost=self.cost,
            identities=shards,
        )
        return policy, np.array([getattr(result, name) for name in FIGURES], np.float64)


def predict(
    builders: Mapping[str, Build],
    sketch: LengthSample,
    *,
    world_size: int,
    setup: Setup,
    cost: Cost,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Figures of every policy, in the order of `builders`.

    Args:
        builders: policies by name; `BASELINE` must be among them.
        sketch: no sample longer than `setup.max_tokens`.
        cost: the cost model; the same for all policies.
        progress: called with epochs run so far and in all.
    """
    if BASELINE not in builders:
        raise ConfigurationError(f"speed-ups need {BASELINE} among the policies")
    world = _World(ranks=world_size, setup=setup, cost=cost)
    epochs = _Epochs.make(sketch, world, seed)
    found: dict[str, tuple[Policy, Float64Array] | EvenstepError | ImportError] = {}
    done, total = 0, len(builders) * len(epochs.runs)
    for name, build in builders.items():
        rows: list[Float64Array] = []
        try:
            for lengths, order_seed in epochs.runs:
                policy, figures = world.run(build, lengths, order_seed)
                rows.append(figures)
                done += 1
                if progress is not None:
                    progress(done, total)
            found[name] = policy, np.array(rows)
        except (EvenstepError, ImportError) as error:
            found[name] = error
    baseline = found[BASELINE]
    if isinstance(baseline, Exception):
        raise baseline
    return [_prediction(name, outcome, baseline[1], epochs) for name, outcome in found.items()]


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """Epochs to run every policy over, and what their spread means."""

    runs: list[tuple[Int64Array, int]]
    """(lengths, seed) of the value; then of `_SKETCHES` sketches; then of `_ORDERS` orders."""
    scale: float
    """See `spread`."""
    share: float
    """Samples of a short epoch over those of the value's."""

    @classmethod
    def make(cls, sketch: LengthSample, world: _World, seed: int) -> _Epochs:
        if sketch.whole:
            # The user's own seed and the data's own order: `evenstep simulate` says the same.
            return cls(runs=[(sketch.lengths, seed)], scale=0.0, share=1.0)
        lengths, count = np.sort(sketch.lengths), len(sketch.lengths)
        size = _size(sketch, world)
        per_rank = max(128, min(_SHORT_PER_RANK, _SHORT_ALL_RANKS // world.ranks))
        short = min(per_rank * world.ranks, size)

        def order(number: int, length: int) -> Int64Array:
            """[length] places in the sorted sketch, each equally often."""
            draw = generator(seed, number, Stream.ADVICE_EPOCH).permutation(count)
            return np.resize(draw, length).astype(np.int64)

        runs = [(lengths[order(0, size)], seed)]
        same = order(0, short)
        for number in range(_SKETCHES):
            random = generator(seed, number, Stream.ADVICE_RESAMPLE)
            again = np.sort(lengths[random.integers(count, size=count)])
            runs.append((again[same], seed))
        runs += [(lengths[order(number, short)], seed + number) for number in range(_ORDERS)]
        return cls(runs=runs, scale=spread(count, sketch.total), share=short / size)

    def half_width(self, column: Float64Array) -> float:
        """How far the value may be off, from a figure of all `runs`."""
        if len(column) == 1:
            return 0.0
        sketches, orders = column[1 : 1 + _SKETCHES], column[1 + _SKETCHES :]
        # Both the predicted epoch and the real one have the luck of one order.
        luck = 2 * float(orders.var(ddof=1)) * self.share
        return _STUDENT * math.sqrt(float(sketches.var(ddof=1)) * self.scale**2 + luck)


def _size(sketch: LengthSample, world: _World) -> int:
    per_rank = max(
        min(_PER_RANK, _ALL_RANKS // world.ranks),
        _WINDOWS * min(world.setup.buffer_size, _PER_RANK),
    )
    whole = per_rank * world.ranks
    return whole if sketch.total is None else min(whole, sketch.total)


def _prediction(
    name: str,
    outcome: tuple[Policy, Float64Array] | EvenstepError | ImportError,
    baseline: Float64Array,
    epochs: _Epochs,
) -> Prediction:
    if isinstance(outcome, Exception):
        return Prediction(
            policy=name,
            options={},
            needs_lengths=False,
            packed=False,
            figures={},
            problem=" ".join(str(outcome).split()),
        )
    policy, rows = outcome
    efficiency = FIGURES.index("efficiency")
    speedups = rows[:, efficiency] / baseline[:, efficiency]
    columns = {**dict(zip(FIGURES, rows.T)), "speedup": speedups}
    return Prediction(
        policy=name,
        options={key: value for key, value in policy.options().items() if key != "lengths"},
        needs_lengths=policy.lengths is not None,
        packed=policy.packed,
        figures={key: _range(key, column, epochs) for key, column in columns.items()},
    )


def _range(name: str, column: Float64Array, epochs: _Epochs) -> Range:
    half = epochs.half_width(column)
    floor = 1.0 if name == "imbalance" else 0.0
    ceiling = 1.0 if name in ("padding", "efficiency") else math.inf
    return around(float(column[0]), -half, half, floor=floor, ceiling=ceiling)
