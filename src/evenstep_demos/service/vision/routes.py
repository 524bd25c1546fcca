"""Which embeddings a rank sends to which rank, and which it receives.

Both ends put them in the same order, by micro-batch and position of the sample in the backbone's
plan, so only embeddings are sent. All ranks of a data-parallel group need the embeddings of its
samples, as its rows are cut over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.service import SubplanStep
from evenstep.strategy.sample_table import SampleTable
from evenstep_demos.service.options import CONTEXT, RANKS


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


def routes_of(encoder: SubplanStep, tables: Sequence[SampleTable]) -> Routes:
    """The routes of the rank that received this step.

    Args:
        encoder: the encoder's subplan; its bucket number is the rank that encodes.
        tables: [micro-batches] samples of the backbone.
    """
    # [n] of the samples that this rank encodes, [n, 3] (group, micro-batch, position) of each.
    cells = np.concatenate([table.lengths["image"] for table in encoder.samples]) // 4
    goes_to = np.concatenate(encoder.goes_to)
    ends = cells.cumsum()
    sent: list[Int64Array] = [np.empty(0, np.int64)]
    sent_to = []
    for rank in range(RANKS):
        mine = np.flatnonzero(goes_to[:, 0] == rank // CONTEXT)
        mine = mine[np.lexsort((goes_to[mine, 2], goes_to[mine, 1]))]
        sent += [np.arange(ends[i] - cells[i], ends[i]) for i in mine]
        sent_to.append(int(cells[mine].sum()))
    got_from = [0] * RANKS
    begins = tuple(np.full(len(table), -1, np.int64) for table in tables)
    total = 0
    for rank in range(RANKS):
        for k, table in enumerate(tables):
            for position in np.flatnonzero(encoder.comes_from[k][:, 0] == rank):
                begins[k][position] = total
                count = int(table.lengths["image"][position]) // 4
                total += count
                got_from[rank] += count
    return Routes(sent=np.concatenate(sent), sent_to=sent_to, got_from=got_from, begins=begins)
