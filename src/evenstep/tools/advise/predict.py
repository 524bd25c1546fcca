"""Predicts the figures of each policy: their values over a synthetic epoch, and their ranges.

The value is that of one epoch in which each drawn sample occurs equally often (of the data itself,
if all samples were drawn), run as `evenstep.tools.simulate` runs it. The range says how far the
random draw may have moved the value. It comes from shorter epochs, which are cheaper:

- the same epoch several times, each with lengths resampled from the drawn ones, in the same order:
  the k-th shortest sample takes the place of the k-th shortest. This varies as other draws would.
- the drawn lengths in other orders. This varies by the luck of one order, less in longer epochs.

Speed-ups are ratios of efficiency, which is useful cost per unit of time if a step takes as long as
the cost model says for its largest rank. `LEFT_OUT` lists what that leaves out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.policy import Policy
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.update_size import UpdateSize
from evenstep.protocol.window_size import FIXED_SIZE
from evenstep.tools.advise.length_sample import LengthSample, Range, around, spread
from evenstep.tools.advise.recommend import Setup
from evenstep.tools.simulate import deal, simulate
from evenstep.tools.simulate.yardsticks import Yardstick

BASELINE = "fixed-batch"
"""The policy that speed-ups are relative to."""

FIGURES = (
    "padding",
    "imbalance",
    "efficiency",
    "composition",
    "samples_per_update",
    "tokens_per_update",
)
"""Attributes of `SimulationResult`. Samples and tokens are those of all ranks together."""

LEFT_OUT = (
    "small batches, which do not fill an accelerator and take longer than their cost",
    "communication between ranks and the optimizer, which take less time in fewer, larger steps",
    "loading and preparing samples, if the trainer has to wait for them",
    "vision encoders and all other parts whose cost does not grow with tokens",
    "the effect of composition and batch size on the loss, which only training shows",
    "the chat template and augmentation, if the lengths were measured without them",
)
"""Effects that the predictions leave out, one clause each."""

# Under "auto" a window starts small and grows to as many groups as a policy asks for, so an epoch
# is counted in windows of that size. While it grows, and at the end, there is less choice: with 6
# windows that takes at most half a percent off `Even`'s efficiency, with 3 up to a percent.
_WINDOWS, _ALL_RANKS = 6, 2**18  # windows of an epoch, and samples of all ranks at most
_FEWEST_WINDOWS = 2  # whatever the number of ranks
# Epochs for the spread have each drawn length once: in longer ones ranges are about as wide.
_FEWEST_PER_RANK = 128
_REDRAWS, _ORDERS = 8, 5
_STUDENT = 1.895  # 95th percentile of Student's t with _REDRAWS - 1 degrees of freedom


Build = Callable[[PolicyOptions], Policy]
_Outcome = tuple[UpdateSize, Float64Array, Float64Array] | EvenstepError | ImportError


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The figures of one policy."""

    policy: str
    """Its name on the command line."""
    options: Mapping[str, Any] = field(default_factory=dict)
    needs_lengths: bool = False
    """Whether all lengths must be known before training."""
    packed: bool = False
    accumulate: int = 1
    """Steps of an update."""
    figures: Mapping[str, Range] = field(default_factory=dict)
    """Values of `FIGURES`, and "speedup" over the baseline. Empty if the policy cannot run."""
    costs: Float64Array = field(default_factory=lambda: np.zeros((0, 0)), repr=False, compare=False)
    """[steps, ranks] cost, in the epoch of the values."""
    problem: str | None = None
    """Why the policy cannot run on this data."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values of every figure; None if the policy cannot run."""
        figures: dict[str, Any] = dict.fromkeys((*FIGURES, "speedup"))
        figures.update({name: value.as_dict() for name, value in self.figures.items()})
        return {
            "policy": self.policy,
            "needs_lengths": self.needs_lengths,
            "packed": self.packed,
            "accumulate": self.accumulate,
            "options": dict(self.options),
            **figures,
            "problem": self.problem,
        }


@dataclass(frozen=True, kw_only=True)
class _World:
    """The ranks and numbers that all policies run with."""

    ranks: int
    setup: Setup
    cost: Cost

    def run(
        self, build: Build, lengths: Int64Array, seed: int
    ) -> tuple[UpdateSize, Float64Array, Float64Array]:
        """The policy, with updates of `Setup.update_tokens`, its `FIGURES` over an epoch of
        `lengths`, and the [steps, ranks] costs."""
        policy = build(self.setup.options(self.cost))
        size = UpdateSize.of(policy, self.setup.update_tokens, ranks=self.ranks, lengths=lengths)
        shards = deal(len(lengths), self.ranks, seed)
        result = simulate(
            size.policy,
            [lengths[shard] for shard in shards],
            accumulate=size.accumulate,
            buffer_size=self.setup.buffer_size,
            seed=seed,
            cost=self.cost,
            identities=shards,
        )
        figures = np.array([getattr(result, name) for name in FIGURES], np.float64)
        return size, figures, result.costs


def predict(
    builders: Mapping[str, Build],
    length_sample: LengthSample,
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
        length_sample: lengths up to `setup.max_tokens`.
        cost: the cost model; the same for all policies.
        progress: called with epochs run so far and in all.
    """
    if BASELINE not in builders:
        raise ConfigurationError(f"speed-ups are relative to {BASELINE}; add it to the policies")
    world = _World(ranks=world_size, setup=setup, cost=cost)
    epochs = _Epochs.make(length_sample, world, _window(builders, world, length_sample), seed)
    found: dict[str, _Outcome] = {}
    done, total = 0, len(builders) * len(epochs.runs)
    for name, build in builders.items():
        rows: list[tuple[UpdateSize, Float64Array, Float64Array]] = []
        try:
            for lengths, order_seed in epochs.runs:
                rows.append(world.run(build, lengths, order_seed))
                done += 1
                if progress is not None:
                    progress(done, total)
            found[name] = rows[-1][0], np.array([figures for _, figures, _ in rows]), rows[0][2]
        except (EvenstepError, ImportError) as error:
            found[name] = error
    baseline = found[BASELINE]
    if isinstance(baseline, Exception):
        raise baseline
    return [_prediction(name, outcome, baseline[1], epochs) for name, outcome in found.items()]


def predict_once(
    build: Build,
    builders: Mapping[str, Build],
    length_sample: LengthSample,
    *,
    world_size: int,
    setup: Setup,
    cost: Cost,
    seed: int = 0,
) -> dict[str, float]:
    """`FIGURES` of one policy, without ranges, over an epoch as `predict` takes for `builders`."""
    world = _World(ranks=world_size, setup=setup, cost=cost)
    epochs = _Epochs.make(length_sample, world, _window(builders, world, length_sample), seed)
    return dict(zip(FIGURES, world.run(build, *epochs.runs[0])[1].tolist()))


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """Epochs to run every policy over, and the meaning of their spread."""

    runs: list[tuple[Int64Array, int]]
    """(lengths, seed) of the value; of `_REDRAWS` resampled draws; of `_ORDERS` orders."""
    scale: float
    """The factor that `spread` returns."""
    share: float
    """Samples of a short epoch over those of the value's epoch."""

    @classmethod
    def make(cls, length_sample: LengthSample, world: _World, window: int, seed: int) -> _Epochs:
        """
        Args:
            window: samples that a rank's window holds at most.
        """
        if length_sample.whole:
            # The user's seed and the data's order: `evenstep simulate` gives the same figures.
            return cls(runs=[(length_sample.lengths, seed)], scale=0.0, share=1.0)
        lengths, count = np.sort(length_sample.lengths), len(length_sample.lengths)
        size = _size(length_sample.total, world.ranks, window)
        short = min(max(count, _FEWEST_PER_RANK * world.ranks), size)

        def order(number: int, length: int) -> Int64Array:
            """[length] positions in the sorted lengths, each equally often."""
            draw = generator(seed, number, RandomStream.ADVICE_EPOCH).permutation(count)
            return np.resize(draw, length).astype(np.int64)

        runs = [(lengths[order(0, size)], seed)]
        same = order(0, short)
        for number in range(_REDRAWS):
            random = generator(seed, number, RandomStream.ADVICE_RESAMPLE)
            again = np.sort(lengths[random.integers(count, size=count)])
            runs.append((again[same], seed))
        runs += [(lengths[order(number, short)], seed + number) for number in range(_ORDERS)]
        return cls(runs=runs, scale=spread(count, length_sample.total), share=short / size)

    def half_width(self, column: Float64Array) -> float:
        """Half the range around the value, from one figure of all `runs`."""
        if len(column) == 1:
            return 0.0
        redraws, orders = column[1 : 1 + _REDRAWS], column[1 + _REDRAWS :]
        # Both the predicted epoch and the real one have the luck of one order.
        luck = 2 * float(orders.var(ddof=1)) * self.share
        return _STUDENT * math.sqrt(float(redraws.var(ddof=1)) * self.scale**2 + luck)


def _window(builders: Mapping[str, Build], world: _World, length_sample: LengthSample) -> int:
    """Samples that a rank's window holds at most, under any of the policies."""
    if not isinstance(world.setup.buffer_size, str):
        return world.setup.buffer_size
    options = world.setup.options(world.cost)
    tokens = [0]
    for build in builders.values():
        with contextlib.suppress(EvenstepError, ImportError):  # reported when it runs
            tokens.append(build(options).window_tokens or 0)
    return max(FIXED_SIZE, math.ceil(max(tokens) / float(length_sample.lengths.mean())))


def _size(total: int | None, ranks: int, window: int) -> int:
    """Samples of the value's epoch: at most all of the data."""
    windows = max(_FEWEST_WINDOWS, min(_WINDOWS, _ALL_RANKS // (ranks * window)))
    return windows * window * ranks if total is None else min(windows * window * ranks, total)


def _prediction(
    name: str,
    outcome: _Outcome,
    baseline: Float64Array,
    epochs: _Epochs,
) -> Prediction:
    if isinstance(outcome, Exception):
        return Prediction(policy=name, problem=" ".join(str(outcome).split()))
    size, rows, costs = outcome
    policy = size.policy
    efficiency = FIGURES.index("efficiency")
    speedups = rows[:, efficiency] / baseline[:, efficiency]
    columns = {**dict(zip(FIGURES, rows.T)), "speedup": speedups}
    return Prediction(
        policy=name,
        options=dict(policy.options()),
        needs_lengths=isinstance(policy, Yardstick),
        packed=policy.packed,
        accumulate=size.accumulate,
        figures={key: _range(key, column, epochs) for key, column in columns.items()},
        costs=costs,
    )


def _range(name: str, column: Float64Array, epochs: _Epochs) -> Range:
    half = epochs.half_width(column)
    floor = 1.0 if name == "imbalance" else 0.0
    ceiling = 1.0 if name in ("padding", "efficiency") else math.inf
    return around(float(column[0]), -half, half, floor=floor, ceiling=ceiling)
