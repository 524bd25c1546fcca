"""Measures a simulated epoch that all ranks have finished."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.batch.composition import Composition
from evenstep.cost import Cost, GroupShapes, VisionLanguageCost
from evenstep.cost.vision_language import vision_part
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
    parts = {}
    if ranks[0].vision is not None:
        parts = _of_images(emitted)
        if isinstance(cost, VisionLanguageCost):
            parts |= _of_parts(emitted, costs)
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
        tokens_per_update=composition.tokens_per_update,
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
        **parts,
    )


def _of_parts(emitted: Sequence[_Emitted], costs: Float64Array) -> dict[str, Any]:
    """What a result says of a cost of two parts besides.

    Args:
        costs: [steps, ranks] of both parts.
    """
    vision = np.stack([one.vision_costs for one in emitted], axis=1)  # [steps, ranks]
    return {
        "text_imbalance": imbalance(costs - vision),
        "vision_imbalance": imbalance(vision),
        "vision_costs": vision,
    }


def _of_images(emitted: Sequence[_Emitted]) -> dict[str, Any]:
    """What a result says of images besides."""
    images = np.stack([one.images for one in emitted], axis=1)  # [steps, ranks]
    return {
        "patches": sum(one.patches for one in emitted),
        "images": int(images.sum()),
        "steps_mixed": int(((images > 0).any(axis=1) & (images == 0).any(axis=1)).sum()),
    }


def imbalance(costs: Float64Array) -> float:
    """Sum over steps of the largest rank's cost, over the sum of the mean cost.

    Args:
        costs: [steps, ranks].
    """
    mean = float(costs.mean(axis=1).sum()) if costs.size else 0.0
    return float(costs.max(axis=1).sum()) / mean if mean > 0 else 1.0


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
    patches: int
    images: Int64Array
    """[steps]."""
    vision_costs: Float64Array
    """[steps] what of `costs` is of the vision tower."""
    max_delay: int
    """Steps that the sample which waited longest has waited."""


def _emitted(rank: SimulatedRank, policy: Policy, cost: Cost) -> _Emitted:
    groups, made = rank.groups()  # made: [groups] step of each
    members, steps = groups.members, rank.protocol.steps
    costs, vision_costs, images = np.zeros(steps), np.zeros(steps), np.zeros(steps, np.int64)
    if not len(groups):
        return _Emitted(
            members=members,
            costs=costs,
            tokens=0,
            computed_tokens=0,
            useful_cost=0.0,
            patches=0,
            images=images,
            vision_costs=vision_costs,
            max_delay=0,
        )
    shapes = groups.shapes(rank.lengths, rank.vision)
    np.add.at(costs, made, cost(shapes, packed=policy.packed))
    np.add.at(vision_costs, made, vision_part(cost, shapes))
    if shapes.images is not None:
        np.add.at(images, made, shapes.images)
    vision = None if rank.vision is None else rank.vision[:, members]
    alone = GroupShapes.measure(rank.lengths[members], np.arange(len(members) + 1), vision)
    waited = np.repeat(made, groups.sizes) - rank.arrival_steps[members]  # [emitted] steps
    return _Emitted(
        members=members,
        costs=costs,
        tokens=int(shapes.tokens.sum()),
        computed_tokens=int((shapes.tokens if policy.packed else shapes.padded).sum()),
        useful_cost=float(cost(alone, packed=True).sum()),
        max_delay=int(waited.max()),
        patches=0 if shapes.patches is None else int(shapes.patches.sum()),
        images=images,
        vision_costs=vision_costs,
    )
