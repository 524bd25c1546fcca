"""An epoch of the released ODB package over lengths alone.

What runs is the package's own `odb.collate.collate_loop_odb`, unmodified and with all that it
calls, once per rank in a thread. Given to it are what stands outside that loop: samples, which are
an index and an `input_ids` of the right length that holds nothing; a source queue, which never
makes it wait; a queue for its batches, which is emptied at once; and, for torch.distributed, an
exchange in memory. Join mode, no group-order flip, no loss scaling (which changes no group).

Rank 0 receives the rows of all ranks. The others receive their
own row and the extreme ones: the target that they align to is a function of the largest number of
groups, the smallest budget and the smallest number of samples, and recomputing every rank's
alignment on every rank would take hours with 512 of them. Should that ever give another target than
the whole table, ranks would make unequal numbers of steps, for which `run` looks.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

from evenstep.arrays import Int64Array
from evenstep.plan import Groups


@functools.cache
def _nothing(length: int) -> torch.Tensor:
    """[length] int64 in eight bytes."""
    return torch.zeros(1, dtype=torch.int64).expand(length)


@dataclass
class _Rank:
    """One rank's queues."""

    number: int
    lengths: list[int]
    given: int = 0
    batches: list[list[int]] = field(default_factory=list)

    def get(self, timeout: float) -> tuple[int, list[dict[str, Any]]] | None:
        index = self.given
        if index == len(self.lengths):
            return None
        self.given += 1
        return index, [{"input_ids": _nothing(self.lengths[index]), "position": index}]

    def put(self, item: tuple[int, Any], timeout: float) -> None:
        if isinstance(item[1], dict):  # anything else is a slot that no batch needed
            self.batches.append(item[1]["positions"])

    def groups(self) -> Groups:
        return Groups.of([np.array(batch, np.int64) for batch in self.batches])


class _Exchange:
    """Stands in for torch.distributed in the package's modules."""

    distributed_c10d = None

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._own = threading.local()
        self._rows: list[torch.Tensor] = [torch.empty(0)] * world_size
        self._extreme: list[torch.Tensor] = []
        self._all_sent = threading.Barrier(world_size, action=self._find_extremes)
        self._all_read = threading.Barrier(world_size)

    def enter(self, rank: int) -> None:
        self._own.rank = rank

    def abort(self) -> None:
        self._all_sent.abort()
        self._all_read.abort()

    def is_initialized(self) -> bool:
        return True

    def new_group(self, **options: object) -> int:
        return int(self._own.rank)

    def destroy_process_group(self, group: int) -> None:
        pass

    def get_rank(self, group: int | None = None) -> int:
        return 0 if group is not None else int(self._own.rank)

    def get_world_size(self, group: int) -> int:
        return self.world_size if group == 0 else 5

    def all_gather_into_tensor(self, out: torch.Tensor, own: torch.Tensor, group: int) -> None:
        self._rows[group] = own
        self._all_sent.wait()
        rows = self._rows if group == 0 else [own, *self._extreme]
        torch.cat(rows, out=out)
        self._all_read.wait()

    def _find_extremes(self) -> None:
        """A row: budget, number of groups (-1 where the rank is finished), sizes of groups."""
        table = torch.stack(self._rows)
        budget, groups, samples = table[:, 0], table[:, 1], table[:, 2:].sum(1)
        active, none = groups > 0, torch.iinfo(torch.int64).max
        rows = [
            groups.argmax(),
            torch.where(groups >= 0, budget, none).argmin(),
            torch.where(active & (budget > 0), budget, none).argmin(),
            torch.where(active & (samples > 0), samples, none).argmin(),
        ]
        self._extreme = [table[row] for row in rows]


def run(shares: Sequence[Int64Array], *, max_tokens: int, buffer_size: int) -> list[Groups]:
    """For each rank, groups of positions in its share.

    Args:
        shares: for each rank, [samples] lengths in order of arrival, equally many.
    """
    from odb import collate, grouping

    exchange = _Exchange(len(shares))
    ranks = [_Rank(number, own.tolist()) for number, own in enumerate(shares)]
    failures: list[BaseException] = []

    def loop(rank: _Rank) -> None:
        exchange.enter(rank.number)
        try:
            collate.collate_loop_odb(
                rank,
                rank,
                lambda batch: {"positions": [sample["position"] for sample in batch]},
                buffer_size,
                max_tokens,
                threading.Event(),
                join_mode=True,
                no_warmup=True,  # a full window from the first round on
            )
        except BaseException as failure:
            failures.append(failure)
            exchange.abort()

    strategy, state = torch.multiprocessing.get_sharing_strategy(), random.getstate()
    with (
        mock.patch.object(collate, "dist", exchange),
        mock.patch.object(grouping, "dist", exchange),
    ):
        threads = [threading.Thread(target=loop, args=[rank]) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    torch.multiprocessing.set_sharing_strategy(strategy)
    random.setstate(state)
    if failures:
        raise failures[0]
    _check(ranks)
    return [rank.groups() for rank in ranks]


def _check(ranks: Sequence[_Rank]) -> None:
    steps = {len(rank.batches) for rank in ranks}
    emitted = sum(len(batch) for rank in ranks for batch in rank.batches)
    samples = sum(len(rank.lengths) for rank in ranks)
    if len(steps) > 1 or emitted != samples:
        sys.exit(
            f"the package made {sorted(steps)} steps and emitted {emitted} of {samples} samples, "
            "which does not compare"
        )
