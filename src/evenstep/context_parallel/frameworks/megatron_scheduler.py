"""Dynamic context parallelism planned for Megatron-LM: the scheduler of its hybrid data loader.

Megatron-LM asks a scheduler which ranks train on which samples of a global batch, between one
barrier and the next. Of a group of ranks each is given all samples, in one order, and each sample
is shared by all ranks of the group. So plans have groups of 1, 2, 4, ... ranks, for which it has
process groups, and none without samples, which it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    Exchange,
    plan_dynamic_context,
)
from evenstep.plan.packing import DocumentCost

Schedule = list[list[list[int]]]
"""[micro-batches][ranks] a list for each rank."""


class _Sized(Protocol):
    def size(self) -> int: ...


class DynamicContextScheduler:
    """In place of megatron-core's `BalancedCPScheduler`, with the same arguments and method."""

    def __init__(
        self,
        max_seq_len_per_rank: int,
        dp_cp_group: _Sized,
        *,
        cost: DocumentCost | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """
        Args:
            max_seq_len_per_rank: tokens of a rank between two barriers, at most.
            dp_cp_group: the data-parallel and context-parallel ranks, a power of two.

        Raises:
            ConfigurationError: an argument is wrong.
        """
        self.options = DynamicContext(
            ranks=dp_cp_group.size(),
            tokens_per_rank=max_seq_len_per_rank,
            cost=cost or DocumentCost(),
            exchange=exchange or Exchange(),
            powers_of_two=True,
        )

    def get_groups_and_subsamples(
        self, sample_id_seqlens: Sequence[tuple[int, int]], config: Any = None
    ) -> tuple[Schedule, Schedule]:
        """Plans a global batch.

        Args:
            sample_id_seqlens: id and tokens of each sample.
            config: Megatron-LM's, which is not used.

        Returns:
            Tokens, and ids, of the samples of each rank, in the order in which it runs them.

        Raises:
            ConfigurationError: there are no samples.
            SampleError: a sample does not fit on all ranks together.
        """
        lengths = np.array([tokens for _, tokens in sample_id_seqlens], np.int64)
        ids = [number for number, _ in sample_id_seqlens]
        if not ids:
            raise ConfigurationError("there are no samples to schedule; give at least one")
        plan = plan_dynamic_context(lengths, self.options)
        tokens_of: Schedule = []
        ids_of: Schedule = []
        for number in range(plan.micro_batches):
            groups = _without_empty(plan, number)
            own = [group for group in groups if len(group[1])]
            if not own:
                continue
            ranks = [members.tolist() for size, members in groups for _ in range(size)]
            tokens_of.append([[int(lengths[at]) for at in members] for members in ranks])
            ids_of.append([[ids[at] for at in members] for members in ranks])
        return tokens_of, ids_of


def _without_empty(plan: ContextPlan, micro_batch: int) -> list[tuple[int, Int64Array]]:
    """Sizes and documents of the groups of a micro-batch, in the order of ranks. One without
    documents joins those of the ranks beside it with which it makes a group twice its size."""
    groups = [
        (int(plan.first[index]), int(plan.size[index]), plan.group(index))
        for index in np.flatnonzero(plan.micro_batch == micro_batch).tolist()
    ]
    while True:
        empty = [group for group in groups if not len(group[2]) and group[1] < plan.ranks]
        if not empty:
            return [(size, documents) for _, size, documents in groups]
        first, size, _ = min(empty, key=lambda group: group[1])
        twice = 2 * size
        begin = first - first % twice
        joined = [group for group in groups if begin <= group[0] < begin + twice]
        at = groups.index(joined[0])
        documents = np.concatenate([group[2] for group in joined])
        groups[at : at + len(joined)] = [(begin, twice, documents)]
