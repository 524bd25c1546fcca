"""Checks that every sample drawn was delivered once, whole, and to the right ranks.

Three accounts of a run are compared: the plans, the micro-batches that each rank reports, and the
samples as they are stored. No sample passes through this code on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleId, SampleTable


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedMicroBatch:
    """A micro-batch as received: the rank's tokens, in any order, with document and position."""

    samples: SampleTable
    document: npt.NDArray[np.int32]
    """[tokens] row of `samples`."""
    position: npt.NDArray[np.int32]
    """[tokens] within the document."""
    token: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """One step on one rank."""

    step: int
    micro_batches: Sequence[ReceivedMicroBatch]
    wait: float
    """Seconds that the rank waited for its data."""
    processor: dict[str, float]
    """Processor seconds of forward and backward passes, by module."""
    loss: float
    """Summed over this rank's supervised tokens."""
    supervised: int
    seconds: float
    """Seconds of the whole step, data included."""
    encoded: tuple[SampleTable, ...] = ()
    """Samples whose pictures this rank has encoded."""


Records = Mapping[int, Sequence[StepRecord]]
"""The steps of each rank that fetches."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """How much was compared, and found to agree."""

    steps: int
    samples: int
    """Samples delivered, each once."""
    tokens: int
    """Their tokens, joined again from the shards of context-parallel ranks."""
    carried: int
    """Samples drawn that wait for the step after the last."""


def check_delivery(
    plans: Sequence[LoadingPlan],
    records: Records,
    stored: Callable[[SampleId], npt.NDArray[np.integer]],
) -> Checked:
    """Compares plans, the ranks' records and the stored samples.

    Args:
        plans: the plans of all steps, from the first on.
        records: by rank, for ranks that fetched.
        stored: gives the tokens of a sample.

    Raises:
        InvariantError: a rank received samples of another bucket, a sample that was drawn was
            delivered never or twice, or its shards do not make it up.
    """
    carried = check_drawn(plans)
    samples = tokens = 0
    for number, plan in enumerate(plans):
        delivery = plan.delivery
        received = {rank: each[number] for rank, each in records.items() if number < len(each)}
        expected = set(delivery.fetching.tolist())
        if received.keys() != expected or any(each.step != plan.step for each in received.values()):
            raise InvariantError(
                f"step {plan.step} is for ranks {sorted(expected)}, and those that took it are "
                f"{sorted((rank, each.step) for rank, each in received.items())}"
            )
        for bucket in range(plan.buckets):
            sharing = delivery.clients_of(bucket).tolist()
            for k in range(plan.micro_batches):
                members = plan.members(bucket, k)
                parts = [received[rank].micro_batches[k] for rank in sharing]
                where = f"micro-batch {k} of bucket {bucket} in step {plan.step}"
                for rank, part in zip(sharing, parts):
                    if part.samples != members:
                        raise InvariantError(f"{where}: rank {rank} got other samples than planned")
                tokens += _check_whole(parts, members, stored, where)
                samples += len(members)
    return Checked(steps=len(plans), samples=samples, tokens=tokens, carried=carried)


def check_drawn(plans: Sequence[LoadingPlan]) -> int:
    """Checks that the plans place or carry on each sample drawn, once. The positions drawn in the
    order of each source are 0, 1, 2 and so on.

    Returns:
        The number of samples that the last plan carries on.

    Raises:
        InvariantError: a sample is missing or placed twice.
    """
    placed = [plan.samples[plan.assignment.placed] for plan in plans]
    everything = SampleTable.concatenate([*placed, plans[-1].carried])
    for number, name in enumerate(everything.sources):
        positions = np.sort(everything.position[everything.source == number])
        wrong = np.flatnonzero(positions != np.arange(len(positions)))
        if len(wrong):
            raise InvariantError(
                f"sample {wrong[0]:,} in the order of source {name!r} was not placed once, in "
                f"{len(plans)} steps"
            )
    return len(plans[-1].carried)


def _check_whole(
    parts: Sequence[ReceivedMicroBatch],
    members: SampleTable,
    stored: Callable[[SampleId], npt.NDArray[np.integer]],
    where: str,
) -> int:
    """Checks that shards together make up the stored samples; returns the number of tokens."""
    document = np.concatenate([part.document for part in parts])
    position = np.concatenate([part.position for part in parts])
    token = np.concatenate([part.token for part in parts])
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


def check_encoded(plans: Sequence[LoadingPlan], records: Records) -> None:
    """Checks that each picture of a step was encoded once, by the rank that the plan names.

    Raises:
        InvariantError: a picture was encoded never, twice, or by another rank.
    """
    for number, plan in enumerate(plans):
        encoder = plan.subplans["encoder"]
        planned = 0
        for bucket in range(encoder.buckets):
            members = encoder.members(bucket, 0)
            planned += len(members)
            (rank,) = encoder.delivery.clients_of(bucket).tolist()
            if list(records[rank][number].encoded) != [members]:
                raise InvariantError(
                    f"rank {rank} has encoded other pictures in step {plan.step} than planned"
                )
        pictures = int((plan.assignment.placed & (plan.samples.lengths["image"] > 0)).sum())
        if planned != pictures:
            raise InvariantError(
                f"step {plan.step} has {pictures} pictures, and {planned} were encoded"
            )
