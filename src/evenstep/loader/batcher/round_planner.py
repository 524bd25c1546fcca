"""Plans one rank's epoch round by round: samples in, messages to and from all ranks, steps out.

`sample_bytes` is how much memory a sample takes, to size windows that hold many.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.batch.count_media import image_bytes
from evenstep.batch.labels import is_tensor
from evenstep.errors import MismatchError, SampleError
from evenstep.loader.batcher.batcher_messages import (
    EpochSpec,
    LoaderSpec,
    RoundProgress,
    StepProgress,
)
from evenstep.loader.batcher.chunk_checks import ChunkChecks, pack_sample
from evenstep.loader.batcher.intake import IndexFeed
from evenstep.loader.batcher.ports import PipePorts
from evenstep.loader.batcher.sample_store import SampleStore
from evenstep.loader.batcher.whole_updates import StepOfUpdate, WholeUpdates
from evenstep.loader.transport.first_rows import FEW, FirstRows, RowComparison, signed
from evenstep.loader.transport.peers import WindowChecksum
from evenstep.loader.workers.iterable import WorkerStateLog
from evenstep.protocol import EpochOptions, PlannedStep, RankProtocol

_FEW = 16  # items of a long list that stand for all
_DEEPEST = 8  # containers within each other; an object may hold itself


def sample_bytes(sample: Any, *, deep: int = _DEEPEST) -> int:
    """Bytes of a sample, nearly: those of tensors, arrays and text, and of what contains them.

    Args:
        deep: containers within each other that are looked into.
    """
    if is_tensor(sample):
        return int(sample.numel() * sample.element_size())  # a sparse one takes less
    size = getattr(sample, "nbytes", None)  # of arrays and encoded images
    if isinstance(size, int):
        return size
    if not deep:
        return sys.getsizeof(sample)
    pil: Any = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(sample, pil.Image):
        return image_bytes(sample)
    if isinstance(sample, Mapping):
        return sum(sample_bytes(value, deep=deep - 1) for value in sample.values())
    if isinstance(sample, (list, tuple)):
        if not sample:
            return 0
        few = sum(sample_bytes(item, deep=deep - 1) for item in sample[:_FEW])
        return few * len(sample) // len(sample[:_FEW])
    fields = getattr(sample, "__dict__", None)
    return sys.getsizeof(sample) + (sample_bytes(fields, deep=deep - 1) if fields else 0)


_WEIGHED = 64  # samples of a window


def make_protocol(spec: LoaderSpec, epoch: EpochSpec) -> RankProtocol:
    """The protocol of this rank for one pass."""
    asked = spec.update_tokens
    options = EpochOptions(
        policy=spec.policy,
        world_size=spec.world_size,
        buffer_size=spec.memory.buffer_size,
        exhausted=spec.faults.exhausted,
        accumulate=spec.accumulate,
        sizes=spec.sizes,
        update_tokens=asked if isinstance(asked, int) else 0,
        seed=spec.seed,
        epoch=epoch.epoch,
        padded_to=spec.padded_to,
        sources=len(spec.sources),
        others={
            **spec.compared,
            "steps received before": epoch.received,
            "what is left of the epoch": epoch.stream_digest,
        },
    )
    return RankProtocol(
        options,
        rank=spec.rank,
        share=epoch.share,
        entries=epoch.entries,
        start=epoch.start,
        # Samples of a resumed window that were not trained on are prepared again.
        has_filler_sample=bool((epoch.remaining.numbers < epoch.start.taken).any()),
    )


class RoundPlanner:
    """Drives a `RankProtocol`: call `gather`, then `exchange`, until `finished`. One thread."""

    def __init__(
        self,
        spec: LoaderSpec,
        epoch: EpochSpec,
        protocol: RankProtocol,
        *,
        ports: PipePorts,
        store: SampleStore,
        checks: ChunkChecks,
        feed: IndexFeed | None,
    ) -> None:
        """
        Args:
            feed: of a map-style dataset. Where samples are dealt on demand, it is asked for those
                that are dealt to this rank.
        """
        self._epoch = epoch
        self._protocol = protocol
        self._ports = ports
        self._store = store
        self._checks = checks
        self.worker_states = None
        """Those of an iterable dataset."""
        if spec.iterable:
            self.worker_states = WorkerStateLog(max(spec.num_workers, 1), epoch.worker_states)
        self._window_bytes = spec.memory.buffer_bytes // 2  # up to two windows are held
        self._context_parallel = spec.policy.context_parallel > 1
        self._checksum = WindowChecksum()
        self._order = feed
        self._told = spec.world_size == 1
        """The other ranks know of the rows that this one begins with."""
        self._comparison = RowComparison(spec.world_size)
        self._feed = None if epoch.entries is None else feed
        """None once no more samples will be asked for."""
        self._steps_to_skip = epoch.received
        self._handed = 0
        """Steps that the trainer is to take."""
        self._updates = WholeUpdates(epoch.update, spec.policy.sync, spec.policy.packed)

    @property
    def finished(self) -> bool:
        return self._protocol.finished

    def gather(self) -> None:
        """Waits until the protocol has the samples that its next message needs."""
        protocol = self._protocol
        self._request_dealt()
        if protocol.asks_room and protocol.size.fresh:
            protocol.room = self._early_room()
        while protocol.wanted:
            self._receive()
        if protocol.asks_room and not protocol.size.fresh:
            protocol.room = self._room()
        if (number := protocol.lends) is not None:
            protocol.lending.lent = self._sample_to_lend(number)

    def _receive(self) -> None:
        ready = self._store.next_unplanned()
        if ready is None:
            self._protocol.end_of_source()
            return
        self._protocol.receive(ready.columns, ready.numbers, end=ready.end, left_out=ready.left_out)
        if ready.digests is not None:
            self._checksum.note(ready.numbers, ready.digests)

    def end_requests(self) -> None:
        """Says that no more samples will be asked for, unless that has been said."""
        if self._feed is not None:
            feed, self._feed = self._feed, None
            feed.request(None)

    def _request_dealt(self) -> None:
        if self._feed is None:
            return
        dealt = self._protocol.newly_dealt()
        if dealt is None:
            self.end_requests()
        elif len(dealt):
            self._feed.request(dealt)

    def exchange(self) -> list[StepOfUpdate]:
        """Exchanges messages with all ranks; returns the steps of the updates that are whole by it,
        without those that the trainer has received before."""
        if self._protocol.grows:
            self._ports.await_taken(self._handed)
        agreed = self._protocol.agreed
        agreed.ratios, _, agreed.pace = self._ports.measured
        agreed.found = self._ports.found
        message, tells = self._protocol.outgoing(), self._protocol.asks_room and not self._told
        if (number := self._protocol.contradicting) is not None:
            raise _contradiction(number, self._store.index_of(number))
        if tells and self._protocol.taken and (first := self._first_rows) is not None:
            self._told, message = True, signed(message, first)
        if self._context_parallel:
            message = self._checksum.sign(message, self._protocol.taken)
        messages = self._ports.exchange(message)
        if not self._comparison.over:
            messages = self._comparison.read(messages)
        steps = self._protocol.incoming(messages)
        if (paces := self._protocol.paces) is not None and paces[:, 1].any():
            self._ports.paces = paces
        self._checks.filler_sample.borrow(self._protocol.lending.borrowed)
        whole = self._begin_round(steps) if steps else []
        if self.finished:
            whole += self._updates.end()
        self._handed += len(whole)
        # Windows may have grown; and steps held back until more is planned hold their samples.
        self._store.make_room(2 * self._protocol.size.most + self._updates.samples_held)
        return whole

    @property
    def _first_rows(self) -> FirstRows | None:
        return self.first_of_stream() if self._order is None else self._order.first_rows

    def first_of_stream(self) -> FirstRows | None:
        """Of the first window that is large enough."""
        numbers = self._protocol.window_numbers()[:FEW].tolist()
        if len(numbers) < FEW:
            return None
        return FirstRows.of_stream(map(pack_sample, self._store.peek(numbers)))

    def _early_room(self) -> int:
        """`_room`, by the first samples, of which no more are let in than there is memory for."""
        protocol = self._protocol
        sizes: list[int] = []
        while len(sizes) < _WEIGHED and sum(sizes) < self._window_bytes:
            numbers = protocol.window_numbers()
            if len(sizes) < len(numbers):
                sizes += map(sample_bytes, self._store.peek([int(numbers[len(sizes)])]))
            elif protocol.wanted:
                self._store.make_room(protocol.received + 1)
                self._receive()
            else:
                break
        room = _samples_within(self._window_bytes, sizes)
        self._store.make_room(2 * protocol.size.within(room))
        return room

    def _room(self) -> int:
        """Samples like those of the window that this rank has memory for in a window; 0 if the
        window is empty."""
        numbers = self._protocol.window_numbers()
        few = numbers[:: max(1, len(numbers) // _WEIGHED)]
        sizes = map(sample_bytes, self._store.peek(few.tolist()))
        return _samples_within(self._window_bytes, list(sizes))

    def _sample_to_lend(self, number: int) -> bytes:
        start, remaining = self._epoch.start, self._epoch.remaining.numbers
        if number < start.taken and number not in remaining:
            # Trained on before the resume, so not prepared again. The shortest sample of the round
            # that was not trained on takes its place.
            untrained = np.flatnonzero(np.isin(start.numbers, remaining))
            if not len(untrained):
                return b""  # the round's steps have all been received: none needs a filler sample
            number = int(start.numbers[untrained[start.columns[0, untrained].argmin()]])
        return pack_sample(*self._store.peek([number]))

    def _begin_round(self, steps: list[PlannedStep]) -> list[StepOfUpdate]:
        """Adds the steps of a round to the updates; returns those of the updates that are whole."""
        start = steps[0].round.start
        skip, self._steps_to_skip = self._steps_to_skip, 0
        trained = np.concatenate([np.empty(0, np.int64), *(s.members for s in steps[:skip])])
        untrained = np.setdiff1d(start.numbers, trained)
        if skip:
            remaining = self._epoch.remaining.numbers
            expected = remaining[remaining < start.taken]
            if skip > len(steps) or not np.array_equal(untrained, expected):
                raise MismatchError(
                    f"round {start.round} of epoch {self._epoch.epoch} is planned differently than "
                    "when the checkpoint was made, by another version of evenstep, NumPy or the "
                    "policy; use that version, or resume from evenstep.merge_states of all ranks' "
                    "states, which forms new batches"
                )
        worker_states = None
        if self.worker_states is not None:
            needed = int(untrained[0]) if len(untrained) else start.taken
            worker_states = self.worker_states.since(self._epoch.remaining.place_of(needed))
        bad = self._checks.take_bad_before(start.taken)
        new_round: RoundProgress | None = RoundProgress(
            start,
            trained,
            worker_states,
            bad,
            self._updates.totals,
            tuple(step.totals.moments.together() for step in steps[skip:]),
            self._comparison.same,
        )
        whole = []
        for step in steps[:skip]:
            whole += self._updates.add(step, None)
        for step in steps[skip:]:
            whole += self._updates.add(step, StepProgress(step.members, new_round))
            new_round = None
        return whole


def _contradiction(number: int, index: Any) -> SampleError:
    name = f"sample number {number}" if index is None else f"sample {index!r}"
    return SampleError(
        f"{name} has labels that are no copy of its tokens, as models take that do not shift "
        "labels inside, and samples before it were counted as for models that do; pass "
        "labels='every', or "
        "labels='causal' if the model shifts them all the same. Either resumes from a state saved "
        "before"
    )


def _samples_within(memory: int, sizes: list[int]) -> int:
    """How many samples like these find room, nearly always; 0 if none is known.

    n samples take n times the mean, give or take sqrt(n) times the standard deviation. Twice that
    is left free, as some samples have many images and most have few.
    """
    if not sizes:
        return 0
    mean, spread = max(1.0, float(np.mean(sizes))), float(np.std(sizes))
    root = (math.sqrt(spread**2 + mean * memory) - spread) / mean
    return max(1, int(root**2))
