"""The steps of a policy over real lengths, made by the machines that drive the loader.

A policy's budget is chosen for each seed, by planning the epoch, so that it makes as many steps as
the fixed batches do of the same samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan import Even, FixedBatch, Policy, PoolSort, TokenBudget
from evenstep.plan.length_moments import LengthMoments, composition
from evenstep.plan.update_size import GROUPS
from evenstep.tools.simulate import deal
from evenstep.tools.simulate.run import run_epoch

BASE = "fixed"
_NEIGHBOURS = 24  # budgets tried around the one that bisection finds


@dataclass(frozen=True, kw_only=True)
class PlannedEpoch:
    """The steps of one epoch."""

    policy: str
    """With its options, as text."""
    steps: list[Int64Array]
    """Of each step of the optimizer, the samples of all ranks, numbered from 0 in the drawn set."""
    imbalance: float
    """In the policy's own cost, as `SimulationResult.imbalance` defines it."""

    @cached_property
    def digest(self) -> str:
        """Equal for equal steps, whatever the order of samples within a step."""
        found = hashlib.sha256()
        for step in self.steps:
            found.update(np.sort(step).tobytes())
            found.update(b"|")
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every policy is given."""

    lengths: Int64Array
    """[samples] tokens of each."""
    world_size: int
    per_step: int
    """Samples of a fixed step on all ranks."""
    seed: int

    @property
    def steps(self) -> int:
        """Steps that the fixed batches make."""
        return -(-len(self.lengths) // self.per_step)

    @property
    def per_rank(self) -> int:
        """Samples of a fixed step on a rank."""
        return self.per_step // self.world_size

    def plan(self, policy: Policy, *, order: int = 0, accumulate: int = 1) -> PlannedEpoch:
        """A whole epoch.

        Args:
            order: another random order of the same samples.
            accumulate: groups of a rank that make one step of the optimizer.
        """
        seed = self.seed + 1000 * order
        shares = deal(len(self.lengths), self.world_size, seed)
        epoch = run_epoch(
            policy,
            [self.lengths[share] for share in shares],
            accumulate=accumulate,
            seed=seed,
            identities=shares,
        )
        made = epoch.ranks[0].steps
        costs = np.stack([step.totals.cost for step in made])  # [steps, ranks]
        return PlannedEpoch(
            policy=f"{type(policy).__name__}{dict(policy.options())}, accumulate={accumulate}",
            steps=[
                np.concatenate(
                    [epoch.step(index) for index in range(len(made))[begin:][:accumulate]]
                )
                for begin in range(0, len(made), accumulate)
            ],
            imbalance=float(costs.max(axis=1).sum() / costs.mean(axis=1).sum()),
        )

    def fitted(self, policy: Callable[[int], Policy], *, groups: int | None = None) -> PlannedEpoch:
        """The epoch under the budget that makes `steps` steps, or comes closest.

        Args:
            groups: of a step on all ranks, each of which is that much smaller; None for one group
                of each rank.

        Raises:
            SystemExit: a group that holds its share of a step is smaller than the longest sample.
        """
        longest = int(self.lengths.max())
        low, high = longest, int(self.lengths.sum())
        accumulate = 1 if groups is None else max(1, -(-groups // self.world_size))
        if accumulate > 1:
            low = max(1, longest // 16)
        plans: dict[int, PlannedEpoch] = {}

        def excess(budget: int) -> int:
            made = policy(budget)
            if accumulate > 1:
                made = Even(max(budget, longest), target_tokens=budget)
            plans[budget] = self.plan(made, accumulate=accumulate)
            return len(plans[budget].steps) - self.steps

        if excess(low) < 0:
            longest = f"the longest sample, {low:,} tokens, is more than a rank's share of a step"
            raise SystemExit(f"{longest}: lower --max-length or raise --per-step")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        # The number of steps does not fall with the budget everywhere.
        for budget in sorted(
            range(low - _NEIGHBOURS, low + _NEIGHBOURS), key=lambda b: abs(b - low)
        ):
            if any(len(plan.steps) == self.steps for plan in plans.values()):
                break
            if budget >= (longest if accumulate == 1 else 1):
                excess(budget)
        closest = min(
            plans, key=lambda budget: (abs(len(plans[budget].steps) - self.steps), budget)
        )
        return plans[closest]


def _fixed(order: int) -> Callable[[Task], PlannedEpoch]:
    return lambda task: task.plan(FixedBatch(task.per_rank), order=order)


def _of_groups(groups: int) -> Callable[[Task], PlannedEpoch]:
    return lambda task: task.fitted(Even, groups=groups)


POLICIES: dict[str, Callable[[Task], PlannedEpoch]] = {
    BASE: _fixed(0),
    "fixed-again": _fixed(1),
    "odb": lambda task: task.fitted(lambda budget: TokenBudget(budget, spread=False)),
    "token-budget": lambda task: task.fitted(TokenBudget),
    "pool-sort": lambda task: task.plan(PoolSort(task.per_rank)),
    "even": lambda task: task.fitted(Even, groups=GROUPS),
    "even-one-group": lambda task: task.fitted(Even),
    "even-packed": lambda task: task.fitted(lambda budget: Even(budget, packed=True)),
}

DEFAULT = list(POLICIES)
POLICIES |= {f"even-{groups}": _of_groups(groups) for groups in (2, 4, 16, 32, 64)}


def how_random(steps: Sequence[Int64Array], lengths: Int64Array) -> float:
    """The composition of these steps; see `evenstep.batch.Composition`."""
    offsets = np.cumsum([0, *map(len, steps)])
    moments = LengthMoments.of(lengths[np.concatenate(steps)], offsets)
    return composition(float(moments.second.sum()), moments.together(), len(steps))
