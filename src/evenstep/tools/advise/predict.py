"""Predicts the figures of each policy over one epoch, run as `evenstep.tools.simulate` runs it.

It is an epoch of the data itself, if all samples were drawn; otherwise a synthetic one, in which
each drawn sample occurs equally often.

Speed-ups are ratios of efficiency, which is useful cost per unit of time if a step takes as long as
the cost model says for its largest rank. `LEFT_OUT` lists what that leaves out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.policy import Policy
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.update_size import UpdateSize
from evenstep.protocol.window_size import FIXED_SIZE
from evenstep.tools.advise.length_sample import LengthSample
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

_RELATIVE = ("speedup", "tokens_per_second")

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

Build = Callable[[PolicyOptions], Policy]


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
    figures: Mapping[str, float] = field(default_factory=dict)
    """Values of `FIGURES`, "speedup" over the baseline, and real "tokens_per_second" of a rank
    where its rate is known. Empty if the policy cannot run."""
    problem: str | None = None
    """Why the policy cannot run on this data."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values of every figure; None if the policy cannot run."""
        figures = {name: self.figures.get(name) for name in (*FIGURES, *_RELATIVE)}
        return {
            "policy": self.policy,
            "needs_lengths": self.needs_lengths,
            "packed": self.packed,
            "accumulate": self.accumulate,
            "options": dict(self.options),
            **figures,
            "problem": self.problem,
        }


def predict(
    builders: Mapping[str, Build],
    length_sample: LengthSample,
    *,
    setup: Setup,
    cost: Cost,
    rate: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Prediction]:
    """Figures of every policy, in the order of `builders`.

    Args:
        builders: policies by name; `BASELINE` must be among them.
        length_sample: lengths up to `setup.max_tokens`.
        cost: the cost model; the same for all policies.
        rate: units of cost per second of a rank; 0 where it is not known.
        progress: called with policies run so far and in all.
    """
    if BASELINE not in builders:
        raise ConfigurationError(f"speed-ups are relative to {BASELINE}; add it to the policies")
    lengths = _epoch(length_sample, setup, _window(builders, setup, cost, length_sample), seed)
    found = []
    for number, (name, build) in enumerate(builders.items(), 1):
        try:
            found.append(_run(name, build, lengths, setup, cost, seed))
        except (EvenstepError, ImportError) as error:
            if name == BASELINE:
                raise
            found.append(Prediction(policy=name, problem=" ".join(str(error).split())))
        if progress is not None:
            progress(number, len(builders))
    base = next(one.figures["efficiency"] for one in found if one.policy == BASELINE)
    drawn = length_sample.lengths
    alone = cost(GroupShapes.of_equals(1, drawn), packed=True)
    fastest = rate * float(drawn.sum() / alone.sum()) * (0.75 if setup.recomputes else 1.0)
    for place, one in enumerate(found):
        if one.figures:
            efficiency = one.figures["efficiency"]
            gains = zip(_RELATIVE, (efficiency / base, efficiency * fastest)[: 1 + (rate > 0)])
            found[place] = replace(one, figures={**one.figures, **dict(gains)})
    return found


def _run(
    name: str, build: Build, lengths: Int64Array, setup: Setup, cost: Cost, seed: int
) -> Prediction:
    """A policy, with updates of `Setup.update_tokens`, over an epoch of `lengths`."""
    policy = build(setup.options(cost))
    size = UpdateSize.of(policy, setup.update_tokens, ranks=setup.world_size, lengths=lengths)
    shards = deal(len(lengths), setup.world_size, seed)
    result = simulate(
        size.policy,
        [lengths[shard] for shard in shards],
        accumulate=size.accumulate,
        update_tokens=setup.update_tokens,
        buffer_size=setup.buffer_size,
        seed=seed,
        cost=cost,
        identities=shards,
    )
    return Prediction(
        policy=name,
        options=dict(size.policy.options()),
        needs_lengths=isinstance(size.policy, Yardstick),
        packed=size.policy.packed,
        accumulate=size.accumulate,
        figures={figure: float(getattr(result, figure)) for figure in FIGURES},
    )


def _epoch(length_sample: LengthSample, setup: Setup, window: int, seed: int) -> Int64Array:
    """[samples] lengths of the epoch, at most as many as the data has.

    Args:
        window: samples that a rank's window holds at most.
    """
    lengths, total = length_sample.lengths, length_sample.total
    if length_sample.whole:
        return lengths  # in the data's order: `evenstep simulate` gives the same figures
    ranks = setup.world_size
    windows = max(_FEWEST_WINDOWS, min(_WINDOWS, _ALL_RANKS // (ranks * window)))
    size = windows * window * ranks if total is None else min(windows * window * ranks, total)
    drawn = generator(seed, 0, RandomStream.ADVICE_EPOCH).permutation(np.sort(lengths))
    return np.resize(drawn, size)


def _window(
    builders: Mapping[str, Build], setup: Setup, cost: Cost, length_sample: LengthSample
) -> int:
    """Samples that a rank's window holds at most, under any of the policies."""
    if not isinstance(setup.buffer_size, str):
        return setup.buffer_size
    tokens = [0]
    for build in builders.values():
        with contextlib.suppress(EvenstepError, ImportError):  # reported when it runs
            tokens.append(build(setup.options(cost)).window_tokens or 0)
    return max(FIXED_SIZE, math.ceil(max(tokens) / float(length_sample.lengths.mean())))
