"""Measures a simulated epoch that all ranks have finished."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.batch.composition import Composition
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.length_moments import LengthMoments
from evenstep.plan.policy import Policy
from evenstep.protocol.planned_step import PlannedStep
from evenstep.tools.simulate.rank import SimulatedRank
from evenstep.tools.simulate.result import SimulationResult


def measure(
    policy: Policy,
    cost: Cost,
    ranks: Sequence[SimulatedRank],
    identities: Sequence[Int64Array],
    sent: int,
    plan_seconds: float,
    accumulate: int = 1,
) -> SimulationResult:
    """The figures of an epoch that all ranks have finished.

    Args:
        identities: for each rank, [samples] identity of each sample.
        sent: bytes of all messages except the hello.
        plan_seconds: processor time in the policy, all ranks together.
        accumulate: steps of an update.
    """
    steps, rounds = ranks[0].protocol.steps, ranks[0].protocol.rounds
    emitted = [_emitted(rank, policy, cost) for rank in ranks]
    costs = np.stack([one.costs for one in emitted], axis=1)  # [steps, ranks]
    largest, mean = costs.max(axis=1, initial=0.0), costs.mean(axis=1)  # [steps]
    real = sum(one.tokens for one in emitted)
    computed = sum(one.computed_tokens for one in emitted)
    useful = sum(one.useful_cost for one in emitted)
    # Identities: each once, how often each was given to the ranks, and how often emitted.
    given, given_counts = np.unique(np.concatenate(list(identities)), return_counts=True)
    names = [names[one.members] for one, names in zip(emitted, identities)]
    emitted_counts = np.bincount(
        np.searchsorted(given, np.concatenate(names)), minlength=len(given)
    )  # [identities]
    count = int(emitted_counts.sum())
    composition = _composition(ranks[0].steps, accumulate)
    return SimulationResult(
        policy=policy.name,
        world_size=len(ranks),
        samples=len(given),
        steps=steps,
        rounds=rounds,
        padding=1 - real / computed if steps else 0.0,
        imbalance=float(largest.sum() / mean.sum()) if steps else 1.0,
        imbalance_p95=float(np.quantile(largest / mean, 0.95)) if steps else 1.0,
        efficiency=useful / (len(ranks) * float(largest.sum())) if steps else 0.0,
        samples_per_step=count / max(steps, 1),
        tokens_per_step=real / max(steps, 1),
        composition=composition.value,
        samples_per_update=composition.samples_per_update,
        tokens_per_update_cv=composition.tokens_per_update_cv,
        emitted=count,
        missing=int((emitted_counts == 0).sum()),
        duplicates=int(np.maximum(emitted_counts - given_counts, 0).sum()),
        sampler_padding=int((given_counts - 1).sum()),
        dropped=sum(rank.protocol.dropped for rank in ranks),
        undelivered=sum(rank.undelivered for rank in ranks),
        filler_steps=sum(step.filler for rank in ranks for step in rank.steps),
        max_delay_steps=max(one.max_delay for one in emitted),
        plan_us_per_sample=1e6 * plan_seconds / max(count, 1),
        round_us_per_sample=1e6 * sum(rank.seconds for rank in ranks) / max(count, 1),
        message_bytes_per_round=sent / len(ranks) / max(rounds, 1),
        costs=costs,
    )


def _composition(steps: Sequence[PlannedStep], accumulate: int) -> Composition:
    """From what every rank learns of all others, as a training does."""
    composition = Composition()
    rounds = {id(step.round): step.round.totals for step in steps}
    if rounds:
        every = [totals.moments.together() for totals in rounds.values()]
        composition.add_updates(functools.reduce(LengthMoments.along, every).every(accumulate))
    return composition


@dataclass(frozen=True, kw_only=True)
class _Emitted:
    """Everything that one rank emitted."""

    members: Int64Array
    """[emitted] arrival numbers."""
    costs: Float64Array
    """[steps] cost of the rank's groups; 0 for a filler step."""
    tokens: int
    computed_tokens: int
    """`tokens` and padding."""
    useful_cost: float
    """Cost of each sample by itself, without padding."""
    max_delay: int
    """Steps that the sample which waited longest has waited."""


def _emitted(rank: SimulatedRank, policy: Policy, cost: Cost) -> _Emitted:
    groups, made = rank.groups()  # made: [groups] step of each
    members, costs = groups.members, np.zeros(rank.protocol.steps)
    if not len(groups):
        return _Emitted(
            members=members, costs=costs, tokens=0, computed_tokens=0, useful_cost=0.0, max_delay=0
        )
    shapes = groups.shapes(rank.lengths)
    np.add.at(costs, made, cost(shapes, packed=policy.packed))
    alone = GroupShapes.measure(rank.lengths[members], np.arange(len(members) + 1))
    waited = np.repeat(made, groups.sizes) - rank.arrival_steps[members]  # [emitted] steps
    return _Emitted(
        members=members,
        costs=costs,
        tokens=int(shapes.tokens.sum()),
        computed_tokens=int((shapes.tokens if policy.packed else shapes.padded).sum()),
        useful_cost=float(cost(alone, packed=True).sum()),
        max_delay=int(waited.max()),
    )
