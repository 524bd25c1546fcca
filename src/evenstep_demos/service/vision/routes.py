"""Which embeddings a rank sends to which rank, and which it receives.

Both ends put them in the same order, by micro-batch and position of the sample in the backbone's
plan, so only embeddings are sent. All clients of a bucket need its embeddings, as its rows are cut
over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.partition import partition
from evenstep.service import SubplanStep
from evenstep.strategy.sample_table import SampleTable


@dataclass(frozen=True, kw_only=True, eq=False)
class Routes:
    """Routes of one rank in one step. A cell is four patches, and one row of embeddings."""

    sent: Int64Array
    """[n] rows of the rank's own embeddings, in the order in which they are sent."""
    sent_to: list[int]
    """[ranks] how many of them go to each."""
    got_from: list[int]
    """[ranks] how many rows come from each."""
    begins: tuple[Int64Array, ...]
    """[micro-batches] [samples] where a sample's rows begin among those received; -1 for a sample
    without a picture."""


def routes_of_subplan(
    part: SubplanStep,
    tables: Sequence[SampleTable],
    clients_of: Sequence[Sequence[int]],
    ranks: int,
    encoder_of: Sequence[int],
) -> Routes:
    """Routes if a subplan distributes pictures over all ranks.

    Args:
        part: the encoder's subplan.
        tables: [micro-batches] samples of the backbone.
        clients_of: [buckets] ranks that train on each bucket of the backbone.
        ranks: number of ranks.
        encoder_of: [buckets of the subplan] the rank that encodes each.
    """
    goes_to = np.concatenate(part.goes_to)
    cells = np.concatenate([table.lengths["image"] for table in part.samples]) // 4
    rank_of = np.append(np.asarray(encoder_of), -1)  # -1 stays -1
    by = [rank_of[each[:, 0]] for each in part.comes_from]
    return _routes(goes_to, cells, by, tables, clients_of, ranks)


def routes_of_group(
    tables: Sequence[SampleTable],
    bucket: int,
    rank: int,
    clients_of: Sequence[Sequence[int]],
    ranks: int,
    costs: Sequence[npt.NDArray[np.float64]],
) -> tuple[Routes, list[Int64Array]]:
    """Routes if each group encodes its own pictures, divided evenly among its ranks.

    Args:
        tables: [micro-batches] samples of the rank's bucket.
        costs: [micro-batches] [samples] cost in the encoder; 0 without a picture.

    Returns:
        The routes; and, [micro-batches], which samples this rank encodes.
    """
    group = list(clients_of[bucket])
    flat = np.concatenate(list(costs))
    bins = partition(flat, len(group)).bin_of
    encoders = np.where(flat > 0, np.asarray(group)[bins], -1)
    by = np.split(encoders, np.cumsum([len(table) for table in tables])[:-1])
    mine = [np.flatnonzero(each == rank) for each in by]
    goes_to = np.concatenate(
        [
            np.stack([np.full(len(rows), bucket), np.full(len(rows), k), rows], axis=1)
            for k, rows in enumerate(mine)
        ]
    )
    cells = np.concatenate([table.lengths["image"][rows] // 4 for table, rows in zip(tables, mine)])
    return _routes(goes_to, cells, by, tables, clients_of, ranks), mine


def _routes(
    goes_to: Int64Array,
    cells: Int64Array,
    encoders: Sequence[Int64Array],
    tables: Sequence[SampleTable],
    clients_of: Sequence[Sequence[int]],
    ranks: int,
) -> Routes:
    """
    Args:
        goes_to: [n, 3] bucket, micro-batch and position of each sample that this rank encodes.
        cells: [n] cells of each.
        encoders: [micro-batches] [samples] the rank that encodes each; -1 without a picture.
    """
    own_begins = np.append(0, cells.cumsum())
    sent: list[Int64Array] = []
    sent_to = [0] * ranks
    bucket_of = {rank: b for b, clients in enumerate(clients_of) for rank in clients}
    for rank in range(ranks):
        mine = np.flatnonzero(goes_to[:, 0] == bucket_of[rank])
        mine = mine[np.lexsort((goes_to[mine, 2], goes_to[mine, 1]))]
        sent += [np.arange(own_begins[i], own_begins[i + 1]) for i in mine]
        sent_to[rank] = int(cells[mine].sum())
    got_from = [0] * ranks
    begins = [np.full(len(table), -1, np.int64) for table in tables]
    total = 0
    for rank in range(ranks):
        for k, table in enumerate(tables):
            for position in np.flatnonzero(encoders[k] == rank):
                begins[k][position] = total
                count = int(table.lengths["image"][position]) // 4
                total += count
                got_from[rank] += count
    return Routes(
        sent=np.concatenate(sent) if sent else np.empty(0, np.int64),
        sent_to=sent_to,
        got_from=got_from,
        begins=tuple(begins),
    )
