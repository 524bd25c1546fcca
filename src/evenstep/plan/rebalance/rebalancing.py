"""`Rebalancing`: where each sequence of an update goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups


@dataclass(frozen=True, eq=False)
class Rebalancing:
    """Every rank has as many micro-batches as any other, and at least one sequence. A micro-batch
    is empty only where there are fewer sequences than micro-batches, or where those that stay
    together leave a rank fewer."""

    ranks: int
    micro_batches: int
    """Of each rank."""
    rank: Int64Array
    """[sequences] the rank that each goes to."""
    micro_batch: Int64Array
    """[sequences] the micro-batch of that rank."""
    costs: Float64Array
    """[ranks, micro_batches] the cost of each."""

    def of_rank(self, rank: int) -> list[Int64Array]:
        """[micro_batches] the sequences of each of the rank's micro-batches, ascending."""
        first = rank * self.micro_batches
        return [self._bins.get(first + step, _NONE) for step in range(self.micro_batches)]

    def loss_scales(self, counts: npt.ArrayLike) -> Float64Array:
        """[ranks, micro_batches] the factor for the loss of each, with which the gradient, averaged
        over ranks, is that of one batch of all sequences.

        Args:
            counts: [sequences] what the loss of a micro-batch is a mean over: the supervised tokens
                of each, or 1 for a mean over sequences.

        Raises:
            ConfigurationError: there is not one count for each sequence.
        """
        each = np.asarray(counts, np.int64)
        if each.shape != self.rank.shape:
            raise ConfigurationError(
                f"counts of shape {each.shape} for {len(self.rank)} sequences; pass one for each"
            )
        of_bin = np.zeros((self.ranks, self.micro_batches), np.int64)
        np.add.at(of_bin, (self.rank, self.micro_batch), each)
        scales: Float64Array = self.ranks * of_bin / max(int(each.sum()), 1)
        return scales

    def restore(self, values: Sequence[Sequence[Sequence[Any]]]) -> list[Any]:
        """[sequences] what ranks computed of each, in the order of the sequences.

        Args:
            values: [ranks, micro_batches, sequences of each] one value for each sequence.

        Raises:
            ConfigurationError: there is not one value for each sequence.
        """
        numbers = [members for rank in range(self.ranks) for members in self.of_rank(rank)]
        flat = flattened([each for own in values for each in own], numbers)
        found = dict(zip(np.concatenate(numbers).tolist(), flat))
        return [found[number] for number in range(len(flat))]

    @property
    def time(self) -> float:
        """The cost of all micro-batches if each waits for the slowest rank."""
        return float(self.costs.max(axis=0).sum())

    @property
    def imbalance(self) -> float:
        """`time` over the mean cost of the ranks: 1 is perfect."""
        return _over_mean(self.time, self.costs)

    @cached_property
    def _bins(self) -> dict[int, Int64Array]:
        labels = self.rank * self.micro_batches + self.micro_batch
        groups = Groups.by_label(labels)
        return {int(labels[g[0]]): g for g in map(groups.group, range(len(groups)))}


def flattened(values: Sequence[Sequence[Any]], numbers: Sequence[Int64Array]) -> list[Any]:
    """The values of all micro-batches, one after the other.

    Args:
        values, numbers: [micro_batches][sequences of each].

    Raises:
        ConfigurationError: there is not one value for each sequence.
    """
    given, wanted = [len(each) for each in values], [len(own) for own in numbers]
    if given != wanted:
        raise ConfigurationError(
            f"values has {given} entries for micro-batches of {wanted} sequences; pass one for each"
        )
    return [value for each in values for value in each]


_NONE = np.empty(0, np.int64)


def _over_mean(slowest: float, costs: Float64Array) -> float:
    total = float(costs.sum())
    return slowest * len(costs) / total if total else 1.0
