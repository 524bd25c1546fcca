"""A `ContextPlan` at run time: the group that a rank is in, micro-batch after micro-batch.

All ranks compare the plan of a step before any trains on it. Then each goes through the same list
of micro-batches, and in each it exchanges with the ranks of its group only. Groups are ranges of
one process group; no communicator is created for a plan, so sizes may change freely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from evenstep.arrays import Int64Array
from evenstep.context_parallel.agreement import FAILED, agree, compared, hash_of
from evenstep.context_parallel.batch_shards import CONTEXT_RANKS, SHARDING
from evenstep.context_parallel.collectives import (
    Collectives,
    Group,
    OneRank,
    RangeCollectives,
    collectives_of,
    process_group,
)
from evenstep.context_parallel.prepared_sharding import PreparedSharding
from evenstep.errors import ConfigurationError, MismatchError, PeerError
from evenstep.plan.dynamic_context import ContextPlan
from evenstep.plan.sharding import METHODS, KernelLatency, Sharding, TileLatency, shard


class DynamicGroups:
    """This rank's part of the steps that plans divide among all ranks.

    ``start`` is called on all ranks for every step, and ``prepare`` for each of its micro-batches,
    in their order. With micro-batches of the loader ``prepare_shard`` does without either.

        groups = DynamicGroups(device=device)  # over all ranks, once
        plan = plan_dynamic_context(lengths, DynamicContext(ranks=64, tokens_per_rank=16_384))
        groups.start(plan, lengths)
        for micro_batch in range(plan.micro_batches):
            documents = groups.documents(micro_batch)  # of this rank's group: places in lengths
            prepared = groups.prepare(micro_batch)  # the fourth argument of attention
            own = prepared.sharding.indices(prepared.rank)  # this rank's tokens of their row

    The gradients of a step are the sum over ranks and micro-batches of summed losses, divided by
    the supervised tokens of the step. Some ranks may run the model on no tokens.
    """

    def __init__(
        self,
        group: Group = None,
        *,
        device: torch.device | str,
        backend: str = "auto",
        latency: KernelLatency | None = None,
    ) -> None:
        """
        Args:
            group: the ranks of the plans, data-parallel and context-parallel ones alike: a process
                group, a device mesh of one dimension, or None for all processes.
            device: the device on which attention will run.
            backend: as for `prepare`.
            latency: the model by which a group's documents are cut, as for `shard`; the same on all
                ranks. None counts tiles.
        """
        self._group = process_group(group)
        self._device = torch.device(device)
        self._backend = backend
        self._latency = TileLatency() if latency is None else latency
        alone = group is None and not (dist.is_available() and dist.is_initialized())
        self._all: Collectives = OneRank() if alone else collectives_of(group, 2)
        self._plan: ContextPlan | None = None
        self._lengths = np.empty(0, np.int64)

    @property
    def rank(self) -> int:
        """Of this process, among the ranks of the plans."""
        return self._all.rank

    def start(self, plan: ContextPlan, lengths: npt.ArrayLike) -> None:
        """Begins a step, if all ranks have the same plan of the same documents.

        Args:
            plan: from `plan_dynamic_context`.
            lengths: [documents] tokens of the documents that were planned.

        Raises:
            ConfigurationError: the plan is for another number of ranks.
            MismatchError: plans or lengths differ. On all ranks.
            PeerError: another rank could not start, or died.
        """
        self._plan, self._lengths = None, np.asarray(lengths, np.int64)
        fits = plan.ranks == self._all.ranks and len(plan.documents) == len(self._lengths)
        own = FAILED
        if fits:
            numbers = np.array([plan.ranks, plan.micro_batches], np.int64)
            groups = (plan.micro_batch, plan.first, plan.size, plan.documents, plan.offsets)
            own = hash_of(numbers, *groups, self._lengths)
        failed, others = compared(self._all, own, self._device)
        if not fits:
            raise ConfigurationError(
                f"the plan is for {plan.ranks} ranks and {len(plan.documents)} documents, and "
                f"here are {self._all.ranks} ranks and {len(self._lengths)} documents; plan for "
                "these"
            )
        if failed:
            raise PeerError(f"ranks {failed} could not start this step; see their own errors")
        if others:
            raise MismatchError(
                f"rank {self.rank} has another plan than ranks {others}: its own has "
                f"{plan.micro_batches} micro-batches of {len(self._lengths)} documents and "
                f"{int(self._lengths.sum())} tokens; plan the same lengths by the same options on "
                "all ranks"
            )
        self._plan = plan

    def documents(self, micro_batch: int) -> Int64Array:
        """[documents] positions in `lengths` of those that this rank's group has, in the order of
        its row; none if there are fewer documents than ranks."""
        plan = self._started()
        return plan.group(plan.group_of(micro_batch, self.rank))

    def prepare(self, micro_batch: int) -> PreparedSharding:
        """What `attention` needs for a micro-batch; ``prepared.sharding`` cuts the group's row, and
        ``prepared.rank`` is this rank's number in it.

        Raises:
            ConfigurationError: `start` has not been called, or there is no such micro-batch.
        """
        plan = self._started()
        index = plan.group_of(micro_batch, self.rank)
        size = int(plan.size[index])
        collectives = (
            OneRank() if size == 1 else RangeCollectives(self._group, int(plan.first[index]), size)
        )
        sharding = self._sharding(self._lengths[plan.group(index)], size)
        return PreparedSharding(sharding, collectives, device=self._device, backend=self._backend)

    def prepare_shard(self, shard: Mapping[str, Any]) -> PreparedSharding:
        """What `attention` needs for a micro-batch of a loader whose policy has
        ``context_parallel="dynamic"``, which has compared the plans of all ranks. On all ranks, for
        each micro-batch in the order of the list.

        Args:
            shard: the micro-batch.

        Raises:
            ConfigurationError: it is not such a micro-batch, or this rank is not of its group.
            MismatchError: ranks of the group have collated different rows.
            PeerError: a rank of the group died.
        """
        ranks, sharding = shard.get(CONTEXT_RANKS), shard.get(SHARDING)
        if not isinstance(ranks, range) or self.rank not in ranks:
            raise ConfigurationError(
                f"rank {self.rank} has a micro-batch of the ranks {ranks}; pass those of a loader "
                'with context_parallel="dynamic", over the process group of that loader'
            )
        collectives: Collectives = OneRank()
        if len(ranks) > 1:
            collectives = RangeCollectives(self._group, ranks.start, len(ranks))
            agree(collectives, sharding, self._device)
        assert isinstance(sharding, Sharding)
        return PreparedSharding(sharding, collectives, device=self._device, backend=self._backend)

    def _sharding(self, lengths: Int64Array, size: int) -> Sharding:
        if len(lengths):
            return shard(lengths, size, latency=self._latency, methods=METHODS, even=True)
        nothing = np.empty(0, np.int64)
        return Sharding(
            lengths=nothing,
            document=nothing,
            start=nothing,
            end=nothing,
            offsets=np.zeros(size + 1, np.int64),
            method=METHODS[0],
        )

    def _started(self) -> ContextPlan:
        if self._plan is None:
            raise ConfigurationError("no step was started; call start(plan, lengths) on all ranks")
        return self._plan
