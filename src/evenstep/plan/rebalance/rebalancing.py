"""`Rebalancing`: where each sequence of an update goes, and how even that is.

And what holds for every plan: how many micro-batches it needs, and how even it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array, prefix_sums
from evenstep.errors import ConfigurationError
from evenstep.plan.groups import Groups
from evenstep.plan.partition.items import Costs


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
        total = float(self.costs.sum())
        return self.time * len(self.costs) / total if total else 1.0

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


def fewest_micro_batches(
    lengths: Int64Array, *, ranks: int, max_tokens: int, packed: bool, multiple_of: int = 1
) -> int:
    """Micro-batches of a rank, below which sequences cannot fit. Padded ones fit in so many.

    Args:
        lengths: [sequences] tokens of each, none above `max_tokens`.
    """
    if packed:
        halves = int(np.count_nonzero(2 * lengths > max_tokens))  # no two of them share one
        needed = max(-(-int(lengths.sum()) // max_tokens), halves)
    else:
        # The longest sequence decides how many a micro-batch holds: the next ones in length.
        room = (max_tokens // np.sort(lengths)[::-1]).tolist()
        needed = start = 0
        while start < len(room):
            start += room[start]
            needed += 1
    return -(-needed // (ranks * multiple_of)) * multiple_of


def least_imbalance(costs: Costs, lengths: Int64Array, *, ranks: int, max_tokens: int) -> float:
    """The `Rebalancing.imbalance` that packed micro-batches have at least, however many there are.

    Of sequences that are longer than half of `max_tokens`, no two share a micro-batch. So while one
    rank trains on the costliest, another one of the costliest ``ranks + 1`` waits for its turn, and
    so on: that many micro-batches take at least as long as these. Meanwhile all ranks together
    do no more than hold the sequences that cost most for their tokens; the rest is divided evenly.

    Args:
        costs: [sequences] cost of each.
        lengths: [sequences] tokens of each, none above `max_tokens`.
    """
    total = float(costs.sum())
    if not total:
        return 1.0
    costs = costs.astype(np.float64)
    long = np.sort(costs[2 * lengths > max_tokens])[::-1]
    taken = long[::ranks].cumsum()  # [micro-batches] time of this one and those before it
    dense = (-costs / lengths).argsort(kind="stable")
    room = np.arange(1, len(taken) + 1) * (ranks * max_tokens)
    # A sequence may be cut here, which only lowers the bound.
    held = np.interp(room, prefix_sums(lengths[dense]), prefix_sums(costs[dense]))
    done = np.minimum(held, ranks * taken)
    return float((ranks * taken + total - done).max(initial=total)) / total
