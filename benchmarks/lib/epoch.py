"""The shape of an epoch: figures of the groups that all ranks trained on, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, GroupShapes, PaddedTokenCost
from evenstep.plan import FixedBatch, Groups, Window
from evenstep.tools.simulate import SimulationResult


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Defined as in `SimulationResult`; samples and tokens are summed over ranks."""

    steps: int
    padding: float
    imbalance: float
    efficiency: float
    samples_per_step: float
    tokens_per_step: float

    @classmethod
    def of_result(cls, result: SimulationResult) -> Epoch:
        return cls(**{name: getattr(result, name) for name in cls.__dataclass_fields__})

    @classmethod
    def of_groups(
        cls,
        groups: Sequence[Groups],
        lengths: Sequence[Int64Array],
        *,
        cost: Cost | None = None,
        packed: bool = False,
    ) -> Epoch:
        """
        Args:
            groups: for each rank its groups in the order of steps, equally many.
            lengths: for each rank, what the members of its groups index.
        """
        cost = cost or PaddedTokenCost()
        shapes = [formed.shapes(own) for formed, own in zip(groups, lengths)]
        costs = np.stack([cost(shape, packed=packed) for shape in shapes])
        emitted = np.concatenate([own[formed.members] for formed, own in zip(groups, lengths)])
        alone = GroupShapes.measure(emitted, np.arange(len(emitted) + 1))
        computed = sum(int((s.tokens if packed else s.padded).sum()) for s in shapes)
        longest = float(costs.max(axis=0).sum())
        steps = costs.shape[1]
        return cls(
            steps=steps,
            padding=1 - int(emitted.sum()) / computed,
            imbalance=longest / float(costs.mean(axis=0).sum()),
            efficiency=float(cost(alone, packed=True).sum()) / (len(costs) * longest),
            samples_per_step=len(emitted) / steps,
            tokens_per_step=int(emitted.sum()) / steps,
        )


def in_order(policy: FixedBatch, lengths: Sequence[Int64Array]) -> list[Groups]:
    """A whole epoch of batches in order of arrival, on every rank.

    Each rank's share is one window that holds all of it: the steps of an epoch in many rounds, as
    the order is that of arrival, without the rounds, which take minutes with hundreds of ranks.
    """
    proposals = [
        policy.propose(Window(lengths=own, ages=np.zeros_like(own), exhausted=True))
        for own in lengths
    ]
    messages = np.stack([proposal.message for proposal in proposals])
    return [policy.settle(p, messages, rank).groups for rank, p in enumerate(proposals)]
