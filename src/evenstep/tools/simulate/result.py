"""The figures of a simulated epoch, each defined in its docstring, and how they are measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.batch.composition import Composition
from evenstep.cost import Cost, GroupShapes, VisionLanguageCost
from evenstep.cost.vision_language import vision_part
from evenstep.plan.length_moments import LengthMoments
from evenstep.plan.policy import Policy
from evenstep.protocol.planned_step import PlannedStep
from evenstep.tools.simulate.rank import SimulatedEpoch, SimulatedRank


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """The figures of one epoch under a policy. Fractions are fractions, not percent.

    Samples and tokens are summed over ranks. A filler step costs nothing and holds no sample. An
    epoch without steps has padding and efficiency 0 and imbalance 1.
    """

    policy: str
    world_size: int
    samples: int
    """Different samples in the epoch. Those that the sampler repeated count in `emitted` only."""
    steps: int
    rounds: int
    padding: float
    """1 - real tokens / tokens as computed."""
    imbalance: float
    """Sum over steps of the largest rank's cost, over the sum of the mean cost. Where a step has
    several micro-batches, of those of all ranks together."""
    imbalance_arriving: float
    """The same of the steps that were planned before any rank had received its last sample."""
    imbalance_p95: float
    """95th percentile over steps of largest over mean cost."""
    efficiency: float
    """Useful cost / (ranks x sum of the largest rank's cost), likewise. Useful is
    the cost of each sample by itself, without padding."""
    samples_per_step: float
    tokens_per_step: float
    """Real tokens."""
    composition: float
    """Variance of length within updates over that of random updates of the same samples: see
    `evenstep.batch.Composition`. An update is ``accumulate`` steps."""
    samples_per_update: float
    tokens_per_update: float
    """Real tokens, on all ranks together."""
    tokens_per_update_cv: float
    """Standard deviation over mean of the real tokens of an update."""
    emitted: int
    missing: int
    """Identities that no rank emitted."""
    duplicates: int
    """Emissions of an identity beyond the number of times it was given to the ranks."""
    sampler_padding: int
    """Samples repeated so that all ranks have equally many."""
    dropped: int
    """Samples that the policy dropped."""
    undelivered: int
    """Samples left when the epoch stopped, under ``exhausted="stop"``."""
    filler_steps: int
    """Steps for which a rank had no samples left, summed over ranks."""
    max_delay_steps: int
    """Most steps that a sample waited: the index of the step that emitted it, less the steps
    planned before it entered its rank's window."""
    mean_delay_steps: float
    """The same for a token, on average."""
    plan_us_per_sample: float
    """Microseconds of processor time one rank spends in the policy, per sample it emits."""
    costs: Float64Array = field(repr=False, compare=False)
    """[steps, ranks x micro-batches] cost of every group; 0 for a filler."""
    text_imbalance: float | None = None
    """`imbalance` of the language model's part of the cost; None for a cost of one part, as is the
    next field."""
    vision_imbalance: float | None = None
    """`imbalance` of the vision tower's part: see `evenstep.cost.VisionLanguageCost`."""
    patches: int | None = None
    """None if it is not known which samples have images, as are the next two fields."""
    images: int | None = None
    steps_mixed: int | None = None
    """Steps in which some ranks have an image and others have none."""
    vision_costs: Float64Array | None = field(default=None, repr=False, compare=False)
    """[steps, ranks] the vision tower's part of `costs`; None for a cost of one part."""

    def as_dict(self) -> dict[str, Any]:
        """All figures except the arrays, as text and numbers."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["costs"], values["vision_costs"]
        return {name: value for name, value in values.items() if value is not None}


def measure(
    policy: Policy, cost: Cost, epoch: SimulatedEpoch, accumulate: int = 1
) -> SimulationResult:
    """The figures of an epoch that all ranks have finished.

    Args:
        accumulate: steps of an update.
    """
    ranks, identities = epoch.ranks, epoch.identities
    steps, rounds = ranks[0].protocol.steps, ranks[0].protocol.rounds
    emitted = [_emitted(rank, policy, cost) for rank in ranks]
    costs = np.concatenate([one.costs for one in emitted], axis=1)  # [steps, micro-batches]
    together = accumulate if policy.sync == "update" else 1
    waits = _together(costs, together)
    largest, mean = waits.max(axis=1, initial=0.0), waits.mean(axis=1)
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
    # Steps that had been planned when the first rank received its last sample.
    arrived = min(int(rank.arrival_steps.max(initial=0)) for rank in ranks)
    return SimulationResult(
        policy=policy.name,
        world_size=len(ranks),
        samples=len(given),
        steps=steps,
        rounds=rounds,
        padding=1 - real / computed if steps else 0.0,
        imbalance=float(largest.sum() / mean.sum()) if steps else 1.0,
        imbalance_arriving=imbalance(waits[: arrived // together]),
        imbalance_p95=float(np.quantile(largest / mean, 0.95)) if steps else 1.0,
        efficiency=useful / (costs.shape[1] * float(largest.sum())) if steps else 0.0,
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
        mean_delay_steps=sum(one.waited for one in emitted) / max(real, 1),
        plan_us_per_sample=1e6 * epoch.plan_seconds / max(count, 1),
        costs=costs,
        **({} if ranks[0].vision is None else _images(emitted, cost, costs, together)),
    )


def _together(costs: Float64Array, steps: int) -> Float64Array:
    """[waits, micro-batches] costs between one wait of ranks and the next.

    Args:
        costs: [steps, micro-batches]
        steps: after which ranks wait.
    """
    if steps == 1 or not len(costs):
        return costs
    return np.add.reduceat(costs, np.arange(0, len(costs), steps))


def _images(
    emitted: Sequence[_Emitted], cost: Cost, costs: Float64Array, together: int
) -> dict[str, Any]:
    """The figures of images, and for a cost of two parts those of both parts.

    Args:
        costs: [steps, ranks] of both parts.
        together: steps after which ranks wait.
    """
    images = np.stack([one.images for one in emitted], axis=1)  # [steps, ranks]
    found = {
        "patches": sum(one.patches for one in emitted),
        "images": int(images.sum()),
        "steps_mixed": int(((images > 0).any(axis=1) & (images == 0).any(axis=1)).sum()),
    }
    if not isinstance(cost, VisionLanguageCost):
        return found
    vision = np.stack([one.vision_costs for one in emitted], axis=1)  # [steps, ranks]
    return {
        **found,
        "text_imbalance": imbalance(_together(costs - vision, together)),
        "vision_imbalance": imbalance(_together(vision, together)),
        "vision_costs": vision,
    }


def imbalance(costs: Float64Array) -> float:
    """Sum over steps of the largest rank's cost, over the sum of the mean cost.

    Args:
        costs: [steps, ranks], or ranks x micro-batches.
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


@dataclass(kw_only=True)
class _Emitted:
    """Everything that one rank emitted."""

    members: Int64Array
    """[emitted] arrival numbers."""
    costs: Float64Array
    """[steps, micro-batches] cost of each; 0 for a filler. Where ranks share documents, whose steps
    have any number of micro-batches, [steps, 1] the cost of all."""
    vision_costs: Float64Array
    """[steps] the part of `costs` that is the vision tower's."""
    images: Int64Array
    """[steps]"""
    tokens: int = 0
    computed_tokens: int = 0
    """`tokens` and padding."""
    useful_cost: float = 0.0
    """Cost of each sample by itself, without padding."""
    patches: int = 0
    max_delay: int = 0
    """Most steps that a sample has waited."""
    waited: int = 0
    """Sum over tokens of the steps that each has waited."""


def _emitted(rank: SimulatedRank, policy: Policy, cost: Cost) -> _Emitted:
    groups, made = rank.groups()  # made: [groups] step of each
    members, steps = groups.members, rank.protocol.steps
    found = _Emitted(
        members=members,
        costs=np.zeros((steps, policy.micro_batches)),
        vision_costs=np.zeros(steps),
        images=np.zeros(steps, np.int64),
    )
    if not len(groups):
        return found
    shapes = groups.shapes(rank.lengths, rank.vision)
    number = np.arange(len(made)) - np.searchsorted(made, made)  # [groups] in its step
    at = made, number % found.costs.shape[1]
    np.add.at(found.costs, at, cost(shapes, packed=policy.packed))
    np.add.at(found.vision_costs, made, vision_part(cost, shapes))
    vision = None if rank.vision is None else rank.vision[:, members]
    if shapes.images is not None and shapes.patches is not None:
        np.add.at(found.images, made, shapes.images)
        found.patches = int(shapes.patches.sum())
    alone = GroupShapes.measure(rank.lengths[members], np.arange(len(members) + 1), vision)
    waited = np.repeat(made, groups.sizes) - rank.arrival_steps[members]  # [emitted] steps
    found.tokens = int(shapes.tokens.sum())
    found.computed_tokens = int((shapes.tokens if policy.packed else shapes.padded).sum())
    found.useful_cost = float(cost(alone, packed=True).sum())
    found.max_delay = int(waited.max())
    found.waited = int((waited * rank.lengths[members]).sum())
    return found
