"""Documents of a step that groups of ranks share: each read by one rank, and sent to its group.

Every rank knows the plan of all. So each knows which documents to send to whom, and which it gets
from whom, in one order: that of the plan's documents. A rank collates the whole row of its group
and keeps its shard of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from evenstep.loader.batcher.batch_assembly import Row
from evenstep.loader.batcher.ports import PipePorts
from evenstep.loader.batcher.sample_store import SampleStore
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain
from evenstep.plan.packing.shared_step import SharedStep
from evenstep.protocol import PlannedStep, bodies, wire

_RECORD = struct.Struct("<qq")  # supervised tokens, bytes of the sample behind it


class SharedDocuments:
    """What this rank sends and gets, step by step. `exchange` is called by the plan thread, `rows`
    by any that collates."""

    def __init__(self, rank: int, ranks: int, ports: PipePorts, store: SampleStore) -> None:
        self._rank, self._ranks = rank, ranks
        self._ports, self._store = ports, store
        self._received: dict[int, list[bytes]] = {}
        """By step, what each rank has sent."""

    def exchange(self, step: PlannedStep, *, epoch: int) -> None:
        """Sends this rank's documents of a step to those that share them, and gets theirs.

        Raises:
            PeerError: another rank failed.
            MismatchError: ranks have different plans.
        """
        shared = _shared(step)
        numbers = step.members
        supervised = step.columns_of(numbers)[1].tolist()
        own = np.flatnonzero(shared.reader == self._rank)
        place = {document: k for k, document in enumerate(own.tolist())}
        records: list[list[bytes]] = [[] for _ in range(self._ranks)]
        for document, ranks in _groups(shared):
            if document not in place or ranks == range(self._rank, self._rank + 1):
                continue
            k = place[document]
            (sample,) = self._store.peek([int(numbers[k])])
            sample = pack_plain(sample, f"sample number {numbers[k]} of this rank")
            record = _RECORD.pack(supervised[k], len(sample)) + sample
            for rank in ranks:
                if rank != self._rank:
                    records[rank].append(record)
        parts = [b"".join(each) for each in records]
        body = bodies.encode_documents(_digest(shared), list(map(len, parts)))
        number = step.round.start.round
        message = wire.encode(wire.DOCUMENTS, body, rank=self._rank, round=number)
        messages, received = self._ports.swap(message, parts)
        opened = wire.open_all(messages, wire.DOCUMENTS, number, rank=self._rank, epoch=epoch)
        bodies.check_documents(opened, received, rank=self._rank, round=number)
        self._received[step.index] = received

    def rows(self, step: PlannedStep, own: Sequence[Any]) -> list[Row]:
        """This rank's micro-batches, some perhaps without documents.

        Args:
            own: samples of `step.members`.
        """
        shared, received = _shared(step), self._received.pop(step.index)
        mine = zip(step.columns_of(step.members)[1].tolist(), own, strict=True)
        # Of the plan's documents each rank sends those that it read in the plan's order.
        sent = [_records(part) for part in received]
        read = dict(zip(np.flatnonzero(shared.reader == self._rank).tolist(), mine))
        rows = []
        for micro_batch in range(shared.plan.micro_batches):
            index = shared.plan.group_of(micro_batch, self._rank)
            documents = shared.plan.group(index)
            found = [
                read[document] if reader == self._rank else next(sent[reader])
                for document, reader in zip(documents.tolist(), shared.reader[documents].tolist())
            ]
            samples, supervised = [s for _, s in found], sum(count for count, _ in found)
            lengths = shared.lengths[documents].tolist()
            first, size = int(shared.plan.first[index]), int(shared.plan.size[index])
            ranks = range(first, first + size) if found else range(self._rank, self._rank + 1)
            rows.append(Row(samples, lengths, supervised, ranks))
        return rows


def _shared(step: PlannedStep) -> SharedStep:
    assert step.round.shared is not None
    return step.round.shared


def _groups(shared: SharedStep) -> Iterator[tuple[int, range]]:
    """Each document, in the order of the plan, and the ranks that share it."""
    plan = shared.plan
    for index, (first, size) in enumerate(zip(plan.first.tolist(), plan.size.tolist())):
        for document in plan.group(index).tolist():
            yield document, range(first, first + size)


def _records(part: bytes) -> Iterator[tuple[int, Any]]:
    view, at = memoryview(part), 0
    while at < len(view):
        supervised, size = _RECORD.unpack_from(view, at)
        at += _RECORD.size + size
        yield supervised, unpack_plain(view[at - size : at])


def _digest(shared: SharedStep) -> bytes:
    digest = blake2b(digest_size=bodies.DIGEST)
    plan = shared.plan
    for column in (plan.micro_batch, plan.first, plan.size, plan.documents, plan.offsets):
        digest.update(len(column).to_bytes(8, "little") + column.astype("<i8").tobytes())
    digest.update(shared.lengths.astype("<i8").tobytes())
    return digest.digest()
