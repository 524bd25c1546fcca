"""One rank of the model: the real planner, protocol and position, amid what surrounds them.

A rank acts on its own, or takes in the messages of an exchange. What it does then is a function of
its state and of those messages alone; so a state is copied by pickling it, and what an action leads
to is worked out once.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from model_events import ABORT, Message, Seen, Violation
from model_job import Job
from model_notes import Notes

from evenstep.batch.step_info import StepInfo
from evenstep.cost.vision_language import UNMEASURED
from evenstep.errors import DamagedMessageError, PeerError
from evenstep.loader.batcher.batcher_messages import EpochSpec
from evenstep.loader.batcher.chunk_checks import FillerSample, ReadySamples
from evenstep.loader.batcher.round_planner import RoundPlanner, make_protocol
from evenstep.loader.batcher.whole_updates import StepOfUpdate
from evenstep.loader.options import Faults, Memory
from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.loader.resume.sample_order import DealtOrder
from evenstep.plan.groups import NO_MULTIPLE
from evenstep.protocol.slow_ranks import UNTIMED


class _Waits(Exception):
    """The planner waits for samples."""


class _Spec(SimpleNamespace):
    """The part of a `LoaderSpec` that planning reads."""


class Rank:
    """See the module docstring. The methods named by `actions` are what may happen next."""

    def __init__(self, job: Job, start: EpochStart) -> None:
        epoch = start.spec(0)
        spec = _Spec(
            policy=job.policy,
            rank=start.rank,
            world_size=start.world_size,
            memory=Memory(buffer_size=job.buffer_size, buffer_bytes=job.memory),
            faults=Faults(exhausted=job.exhausted),
            accumulate=job.accumulate,
            sizes=(),
            update_tokens=None,
            seed=0,
            padded_to=NO_MULTIPLE,
            compared={},
            sources=(),
            iterable=False,
        )
        self.job, self.number = job, start.rank
        self.stream = start.share if isinstance(start.share, DealtOrder) else None
        self.taken = epoch.start.taken
        self.measured = UNMEASURED, (0, 0), UNTIMED
        self.found = 0, 0
        self.protocol = make_protocol(spec, epoch)
        self.filler_sample = FillerSample()
        self.planner = RoundPlanner(
            spec,
            epoch,
            self.protocol,
            ports=self,
            store=self,
            checks=self,
            feed=None if epoch.entries is None else self,
        )
        self.source: list[int] = []
        """Arrival numbers still to come."""
        self.indices: dict[int, int] = {}
        """Dataset index of each arrival number."""
        self.arrived = -1
        """The last number that has come."""
        self.asked_all = epoch.entries is None
        self.has_ended = False
        self.has_sample = False
        """Whether there is a sample to run fillers with."""
        self._await(list(start.indices() or ()))
        self.next_number = start.progress.start.taken + start.progress.start.queued
        # Every round plans a sample of each rank, or deals where all that was dealt is bad.
        self.bound = epoch.start.round + (2 if self.stream else 1) * len(job.lengths) + 1
        self.heard = self.count = 0
        self.sent: tuple[Message, ...] = ()
        self.first = start.progress.step
        self.needs: list[int] = []
        """What each step handed out waits for: its last arrival number, or -1."""
        self.waited: dict[int, int] = {}
        """Rounds that each sample of the window was in it before."""
        self.gone = ""
        self._delivered: list[bytes] = []
        self._advance()

    def _await(self, pairs: list[tuple[int, int]]) -> None:
        self.indices.update(pairs)
        self.source += [number for number, _ in pairs]

    # What the planner is surrounded by

    def request(self, entries: np.ndarray | None) -> None:
        if entries is None:
            self.asked_all = True
            return
        assert self.stream is not None
        numbers = range(self.next_number, self.next_number + len(entries))
        self.next_number += len(entries)
        self._await(list(zip(numbers, self.stream.at(entries))))

    @property
    def first_rows(self) -> Any:
        return self.planner.first_of_stream()

    def next_unplanned(self) -> Any:
        raise _Waits

    def peek(self, numbers: list[int]) -> list[Any]:
        for number in numbers:
            if number > self.arrived:
                raise _Waits
            if number not in self.indices:
                raise Violation(f"waits for sample {number}, which never comes")
        return [np.zeros(self.job.lengths[self.indices[number]], np.int64) for number in numbers]

    def make_room(self, limit: int) -> None: ...

    def take_bad_before(self, number: int | None = None) -> tuple[Any, ...]:
        return ()

    def exchange(self, message: bytes) -> list[bytes]:
        if message != self.sent[-1].data:
            raise Violation("a message that was sent already has changed")
        return self._delivered

    # What may happen

    def actions(self, faults: Sequence[str]) -> list[tuple[str, Any]]:
        if self.gone not in ("", "finished"):
            return []
        left = len(self.source)
        if self.gone == "finished":
            # Nothing depends any more on samples that come, except steps that wait for them.
            return [("receives", left)] if left else []
        found: list[tuple[str, Any]] = [
            ("receives", n) for n in sorted({min(n, left) for n in self.job.chunks} - {0})
        ]
        if not left and self.asked_all and not self.has_ended:
            found.append(("ends", None))
        if self.ready:
            found.append(("sends", None))
        return found + [(fault, None) for fault in faults if self._may(fault)]

    def _may(self, fault: str) -> bool:
        # What is misread has to be there: the explorer sees to that.
        only = {"aborts": not self.waits, "is cut off": self.waits, "misreads": False}
        return only.get(fault, True)

    @property
    def waits(self) -> bool:
        """Whether this rank has sent its message, and waits for those of the others."""
        return not self.gone and self.count > self.heard

    def receives(self, count: int, notes: Notes) -> None:
        numbers, self.source = self.source[:count], self.source[count:]
        self.arrived = numbers[-1]
        if self.gone:
            self.source, self.arrived = [], _ALL
            return
        good = [n for n in numbers if self.indices[n] not in self.job.bad]
        lengths = [self.job.lengths[self.indices[n]] for n in good]
        self.has_sample |= len(good) > 0
        ready = ReadySamples(
            np.array(good, np.int64),
            np.array([[n, n // 2, 0] for n in lengths], np.int64).reshape(-1, 3),
            digests=None,
            samples=good,
            indices=[self.indices[n] for n in good],
            planned=sum(n < self.taken for n in good),
            end=numbers[-1] + 1,
        )
        if (unplanned := ready.unplanned()) is not None:
            # At any time, not only when the planner asks: it may make no difference.
            self.protocol.receive(unplanned.columns, unplanned.numbers, end=unplanned.end)

    def ends(self, _: None, notes: Notes) -> None:
        self.has_ended = True
        self.protocol.end_of_source()

    def sends(self, _: None, notes: Notes) -> None:
        if self.protocol.lends is not None:
            notes.lender(self.number, self.protocol.rounds)
        message = self.protocol.outgoing()
        if message != self.protocol.outgoing():
            raise Violation("a message differs when it is asked for again")
        notes.message(self.number, self.count, message)
        self._send(Message(message))

    def _send(self, message: Message) -> None:
        self.sent = (*self.sent[-1:], message)
        self.count += 1

    def hears(self, messages: Sequence[Message], notes: Notes) -> None:
        """An exchange is complete."""
        lost = [rank for rank, message in enumerate(messages) if not message.intact]
        self._delivered = [message.data for message in messages]
        try:
            steps = self.planner.exchange()
        except PeerError as error:
            if not lost:
                raise Violation(f"PeerError, and no rank is gone: {error}") from error
            if not any(f"rank {rank} " in str(error) for rank in lost):
                raise Violation(f"the error names none of ranks {lost}: {error}") from error
            self._go("failed")
            return
        if lost:
            raise Violation(f"goes on, though ranks {lost} are gone")
        self._delivered = []
        self.heard += 1
        self.has_sample |= len(self.protocol.lending.borrowed) > 0
        for step in steps:
            self._release(step, notes)
        if steps and self.job.longest_wait is not None:
            self._check_waits(steps)
        if self.protocol.rounds > self.bound:
            raise Violation(f"more than {self.bound} rounds: this epoch does not end")
        if self.planner.finished:
            notes.steps(self.number, self.first + len(self.needs))
            self._go("finished")

    def misreads(self, messages: Sequence[Message], notes: Notes) -> None:
        other = (self.number + 1) % len(messages)
        damaged = bytearray(messages[other].data)
        damaged[len(damaged) // 2] ^= 1
        self._delivered = [message.data for message in messages]
        self._delivered[other] = bytes(damaged)
        try:
            self.planner.exchange()
        except DamagedMessageError as error:
            if f"rank {other} " not in str(error):
                raise Violation(f"the error does not name rank {other}: {error}") from error
            self._send(ABORT)
            self._go("misreads")
            return
        raise Violation(f"a damaged message of rank {other} passes")

    def _release(self, step: StepOfUpdate, notes: Notes) -> None:
        planned, members = step.planned, step.progress.members.tolist()
        if planned.index != self.first + len(self.needs):
            raise Violation(
                f"step {planned.index} comes after {self.first + len(self.needs)} steps"
            )
        if self.job.exhausted == "stop" and planned.filler:
            raise Violation(f"step {planned.index} is a filler under exhausted='stop'")
        if self.job.together and planned.filler:
            raise Violation(f"step {planned.index} is a filler, where all ranks run out together")
        if planned.filler and not self.has_sample:
            raise Violation(f"step {planned.index} is a filler, and there is no sample for it")
        self.needs.append(max(members, default=-1))
        indices = tuple(self.indices[number] for number in members)
        info = StepInfo(
            epoch=0,
            step=planned.index,
            rank=self.number,
            world_size=self.job.ranks,
            filler=planned.filler,
            indices=indices,
            totals=planned.totals,
            loss_scale=1.0,
        )
        totals = planned.totals
        common = (
            [getattr(totals, name).tolist() for name in totals.__dataclass_fields__],
            step.totals,
            step.ends_update,
        )
        own = [[self.indices[n] for n in group.tolist()] for group in planned.micro_batches]
        notes.step(self.number, info, step.progress, own, common)

    def _check_waits(self, steps: Sequence[StepOfUpdate]) -> None:
        planned = {number for step in steps for number in step.progress.members.tolist()}
        for number in steps[0].planned.round.start.numbers.tolist():
            waited = self.waited.pop(number, 0)
            if number not in planned:
                self.waited[number] = waited + 1
            elif waited > self.job.longest_wait:
                raise Violation(f"sample {number} is planned after {waited} rounds of waiting")

    def _go(self, how: str) -> None:
        """Ends: what others can still see of this rank, and no more, is kept."""
        self.gone = how
        self.planner = self.protocol = None  # type: ignore[assignment]
        self._delivered = []
        self.indices, self.has_ended, self.waited = {}, False, {}
        if how != "finished" or max(self.needs, default=-1) <= self.arrived:
            self.source, self.arrived = [], _ALL

    # Copies

    def act(self, action: str, argument: Any, notes: Notes) -> None:
        getattr(self, action)(argument, notes)
        self._advance()

    def _advance(self) -> None:
        """The planner goes on as far as it can: up to a message, or until it lacks a sample."""
        self.ready = False
        if self.gone or self.waits:
            return
        try:
            self.planner.gather()
        except _Waits:
            return
        self.ready = True

    def seen(self, faults: Sequence[str]) -> Seen:
        steps = range(self.first, self.first + len(self.needs))
        late = (step for step, need in zip(steps, self.needs) if need > self.arrived)
        return Seen(
            pickled=self._dump(),
            heard=self.heard,
            count=self.count,
            sent=self.sent,
            released=steps.stop,
            gone=self.gone,
            waits=self.waits,
            trainable=next(late, steps.stop),
            actions=tuple(self.actions(faults)),
        )

    def _dump(self) -> bytes:
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, 4)
        pickler.dispatch_table = dict.fromkeys((EpochSpec, Job, DealtOrder), _by_id)
        pickler.dispatch_table[type(self.job.policy)] = _by_id
        pickler.dump(self)
        return buffer.getvalue()


_ALL = 1 << 62  # a number that no sample has

_LASTING: dict[int, Any] = {}
"""What never changes, by id; it is not copied."""


def _by_id(lasting: Any) -> tuple[Any, tuple[int]]:
    _LASTING[id(lasting)] = lasting
    return _lasting, (id(lasting),)


def _lasting(key: int) -> Any:
    return _LASTING[key]
