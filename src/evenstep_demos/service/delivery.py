"""Checks that every sample drawn was delivered once, whole, and to the right ranks.

Three accounts of a run are compared: the plans, the micro-batches that each rank reports, and the
samples as they are stored. No sample passes through this code on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleId, SampleTable

Received = npt.NDArray[np.int32]
"""[tokens, 3] the tokens of a micro-batch that one rank received, in any order: number of the
document in the micro-batch, position within the document, and token."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """One step on one rank."""

    micro_batches: Sequence[Received]
    wait: float
    """Seconds that the rank waited for its data."""
    processor: float
    """Processor seconds of forward and backward passes."""
    loss: float
    """Summed over this rank's supervised tokens."""
    supervised: int


Records = Sequence[Sequence[StepRecord]]
"""[ranks] [steps]"""

Stored = Callable[[SampleId], npt.NDArray[np.integer]]
"""Gives the tokens of a sample."""


def check_delivery(plans: Sequence[LoadingPlan], records: Records, stored: Stored) -> int:
    """Compares the plans of all steps, the ranks' records and the stored samples.

    Returns:
        The number of tokens compared: those of all samples, joined again from the shards of
        context-parallel ranks.

    Raises:
        InvariantError: a sample was drawn and never placed, or placed twice; or the shards that
            the ranks of a bucket received do not make up its samples.
    """
    _check_placed(plans)
    tokens = 0
    for number, plan in enumerate(plans):
        for bucket in range(plan.buckets):
            ranks = plan.delivery.clients_of(bucket).tolist()
            for k in range(plan.micro_batches):
                where = f"micro-batch {k} of bucket {bucket} in step {plan.step}"
                parts = [records[rank][number].micro_batches[k] for rank in ranks]
                tokens += _check_whole(parts, plan.members(bucket, k), stored, where)
    return tokens


def _check_placed(plans: Sequence[LoadingPlan]) -> None:
    """The positions placed in the order of each source are 0, 1, 2 and so on."""
    everything = SampleTable.concatenate([plan.samples[plan.assignment.placed] for plan in plans])
    for number, name in enumerate(everything.sources):
        positions = np.sort(everything.position[everything.source == number])
        wrong = np.flatnonzero(positions != np.arange(len(positions)))
        if len(wrong):
            raise InvariantError(
                f"sample {wrong[0]:,} in the order of source {name!r} was not placed once, in "
                f"{len(plans)} steps"
            )


def _check_whole(
    parts: Sequence[Received], members: SampleTable, stored: Stored, where: str
) -> int:
    """Checks that shards together make up the stored samples; returns the number of tokens."""
    document, position, token = np.concatenate(parts).T
    order = np.lexsort((position, document))
    begins = np.searchsorted(document[order], np.arange(len(members) + 1))
    if begins[-1] != len(order):
        raise InvariantError(f"{where}: it has tokens of documents that are not in it")
    for row in range(len(members)):
        mine = order[begins[row] : begins[row + 1]]
        name = members.identity(row)
        tokens = stored(name)
        if not np.array_equal(position[mine], np.arange(len(tokens))):
            raise InvariantError(f"{where}: a token of sample {name} is on no rank, or on several")
        if not np.array_equal(token[mine], tokens):
            raise InvariantError(f"{where}: tokens of sample {name} are not those stored")
    return len(order)
