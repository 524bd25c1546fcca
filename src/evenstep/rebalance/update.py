"""`RebalancedUpdate`: what a rank trains on, and the way back for what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain
from evenstep.plan.rebalance.rebalancing import Rebalancing, flattened
from evenstep.plan.value_checks import check_one_of
from evenstep.rebalance.all_to_all import AllToAll

MEANS = ("token", "sequence")


class RebalancedUpdate:
    """The micro-batches of one rank. Every rank has equally many."""

    def __init__(
        self,
        plan: Rebalancing,
        sequences: dict[int, Any],
        *,
        first: Int64Array,
        supervised: Int64Array,
        exchange: AllToAll,
    ) -> None:
        """
        Args:
            sequences: those of this rank's micro-batches, by number.
            first: [ranks + 1] the number of the first sequence that each rank had.
            supervised: [sequences] tokens that the loss counts.
        """
        self.plan = plan
        self.numbers = plan.of_rank(exchange.rank)
        """[micro_batches] numbers of the sequences of each. Rank 0's sequences have the first
        numbers, then come those of rank 1, and so on."""
        self.micro_batches = [[sequences[n] for n in own.tolist()] for own in self.numbers]
        """[micro_batches] the sequences of each, tensors on the CPU. A micro-batch is empty only
        where there are fewer sequences than micro-batches: run another one with a loss of 0."""
        self._first, self._supervised = first, supervised
        self._exchange = exchange

    def loss_scales(self, mean: str) -> list[float]:
        """[micro_batches] the factor for the loss of each, with which the gradient, averaged over
        ranks, is that of one batch of all sequences.

        Args:
            mean: what the loss of a micro-batch is a mean over. "token": its supervised tokens, as
                in DAPO. "sequence": its sequences, as in GRPO, where each is a mean over its own
                tokens, and in Dr. GRPO, where each is a sum over a constant.
        """
        check_one_of(MEANS, mean=mean)
        counts = self._supervised if mean == "token" else np.ones_like(self._supervised)
        scales: list[float] = self.plan.loss_scales(counts)[self._exchange.rank].tolist()
        return scales

    def restore(self, values: Sequence[Sequence[Any]]) -> list[Any]:
        """Sends back what was computed of each sequence. All ranks call it together.

        Args:
            values: [micro_batches, sequences] one value for each sequence: tensors, arrays,
                numbers, text, or lists and dictionaries of these.

        Returns:
            [sequences] the values of those sequences that this rank had, in its order.

        Raises:
            ConfigurationError: there is not one value for each sequence.
            PeerError: see `Rebalancer.rebalance`.
        """
        flat, numbers = flattened(values, self.numbers), np.concatenate(self.numbers)
        owner = np.searchsorted(self._first, numbers, side="right") - 1
        parts = []
        for rank in range(self.plan.ranks):
            own = np.flatnonzero(owner == rank).tolist()
            found = {"numbers": numbers[own], "values": [flat[at] for at in own]}
            parts.append(pack_plain(found, "the values to restore", exact=False))
        restored: dict[int, Any] = {}
        for part in self._exchange.swap(parts):
            found = unpack_plain(memoryview(part))
            restored.update(zip(found["numbers"].tolist(), found["values"]))
        begin, end = self._first[self._exchange.rank :][:2].tolist()
        return [restored[number] for number in range(begin, end)]
