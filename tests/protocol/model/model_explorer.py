"""Every interleaving of what may happen to a few ranks, breadth first, with all invariants checked.

A state of the job is one state of each rank, by number: ranks share nothing but messages, which the
sender keeps. What a rank does is worked out by the real code once for each of its states and each
set of messages; from then on it is a look-up.

What is checked
- No deadlock: while no rank has failed, something can happen until all have finished.
- Confluence: every message, step, checkpoint and the number of steps are the same in all
  interleavings. So one checkpoint per step stands for all that can be saved at it, and a resumed
  job is checked against the notes of the one before it.
- Agreement: all ranks know the same totals of every step, and make equally many steps.
- An error on every rank within one exchange of a fault, which names a rank that is gone.
- Nobody steps alone: after a rank has reported its failure, or left, all others make equally many
  steps; after one died, those of one exchange more or less.
- Every epoch ends, within as many rounds as there are samples.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from model_events import ABORT, FAULTS, NOTHING, SUDDEN, Message, Seen, Violation
from model_job import Job
from model_notes import Notes
from model_rank import Rank

from evenstep.loader.resume.epoch_cursor import EpochStart

State = tuple[int, ...]


def explained(error: Exception) -> str:
    return str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"


class Found(Exception):
    """A violation, and the shortest way to it."""

    def __init__(self, job: str, violation: str, trace: Sequence[str]) -> None:
        super().__init__("\n    ".join([f"{job}: {violation}", *trace]))
        self.violation = violation
        self.trace = trace


@dataclass
class _Local:
    """One state of one rank and its trainer."""

    seen: Seen
    trained: int
    """Steps that the trainer has taken."""
    actions: tuple[tuple[str, Any], ...]
    after: dict[tuple[str, Any], int] = field(default_factory=dict)
    """By action, the state that follows."""

    def message(self, exchange: int) -> Message | None:
        """Its message of an exchange; None if that may still come."""
        behind = self.seen.count - exchange
        if behind > 0:
            return self.seen.sent[-behind]
        return NOTHING if self.seen.gone else None


class Explorer:
    """All that can happen to a job from where its ranks begin."""

    def __init__(
        self,
        job: Job,
        starts: Sequence[EpochStart],
        notes: Notes,
        *,
        faults: Sequence[str] = FAULTS,
    ) -> None:
        self._job = job
        self._starts = starts
        self._notes = notes.begin(job, starts)
        self._faults = faults
        self._locals: list[_Local] = []
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._moves: dict[tuple[bytes, Any], Seen] = {}
        self._parents: dict[State, tuple[State, str]] = {}
        self._doing: tuple[State, str] = (), "begins"

    def run(self) -> None:
        """
        Raises:
            Found: an invariant does not hold.
        """
        try:
            first = tuple(
                self._number(Rank(self._job, start).seen(self._faults), start.progress.step)
                for start in self._starts
            )
            self._parents[first] = (), ""
            todo = deque([first])
            while todo:
                state = todo.popleft()
                moved = False
                for rank, name, after in self._successors(state):
                    moved |= name not in FAULTS
                    following = (*state[:rank], after, *state[rank + 1 :])
                    if following not in self._parents:
                        self._parents[following] = self._doing
                        todo.append(following)
                if not moved:
                    self._doing = state, "and nothing more can happen"
                    self._check_end([self._locals[number].seen for number in state])
        except Exception as error:  # an invariant, or whatever the code raises
            raise Found(self._job.name, explained(error), self._trace()) from error

    def _successors(self, state: State) -> Iterator[tuple[int, str, int]]:
        """Rank, action and its new state, for all that may happen next."""
        for rank in self._movable(state):
            local = self._locals[state[rank]]
            for action in local.actions:
                self._doing = state, f"rank {rank} {action[0]} {action[1] or ''}"
                yield rank, action[0], self._after(local, action)
            messages = self._messages(state, local)
            if messages is not None:
                self._doing = state, f"rank {rank} hears"
                yield rank, "hears", self._after(local, ("hears", messages))
                whole = len(messages) > 1 and all(message.intact for message in messages)
                if whole and "misreads" in self._faults:
                    self._doing = state, f"rank {rank} misreads"
                    yield rank, "misreads", self._after(local, ("misreads", messages))

    def _movable(self, state: State) -> Iterable[int]:
        """One rank whose next moves no other rank can change.

        It is enough to explore those (a persistent set): a rank that has not sent its message acts
        alone, and one whose messages are all there hears the same whatever the others do next. So
        anything else that happens before one of its moves can as well happen after it, and leads to
        the same state. As every move brings its rank forward, no other rank is put off for ever;
        so every state of every rank and every end of the job is still reached. All invariants
        speak of those alone.
        """
        for rank, number in enumerate(state):
            local = self._locals[number]
            decided = not local.seen.waits or self._messages(state, local) is not None
            if decided and (local.actions or local.seen.waits):
                return (rank,)
        return ()

    def _messages(self, state: State, local: _Local) -> tuple[Message, ...] | None:
        """What a rank hears next; None where some other rank has not sent it."""
        if not local.seen.waits:
            return None
        messages = []
        for number in state:
            message = self._locals[number].message(local.seen.heard)
            if message is None:
                return None
            messages.append(message)
        return tuple(messages)

    def _after(self, local: _Local, action: tuple[str, Any]) -> int:
        found = local.after.get(action)
        if found is None:
            found = local.after[action] = self._worked_out(local, action)
        return found

    def _worked_out(self, local: _Local, action: tuple[str, Any]) -> int:
        seen, name = local.seen, action[0]
        if name == "trains":
            return self._number(seen, local.trained + 1)
        if name in FAULTS and name != "misreads":  # nothing is left but what it has sent
            sent, count = seen.sent, seen.count
            if name == "aborts":
                sent, count = (*sent[-1:], ABORT), count + 1
            left = seen.heard, count, sent, seen.released, name
            return self._number(Seen(pickle.dumps(left), *left), 0)
        key = seen.pickled, action
        if key not in self._moves:
            rank: Rank = pickle.loads(seen.pickled)
            rank.act(*action, self._notes)
            self._moves[key] = rank.seen(self._faults)
        return self._number(self._moves[key], local.trained)

    def _number(self, seen: Seen, trained: int) -> int:
        if seen.gone not in ("", "finished"):
            trained = 0
        number = self._numbers.setdefault((seen.pickled, trained), len(self._locals))
        if number == len(self._locals):
            actions = seen.actions
            if trained < seen.trainable and seen.gone in ("", "finished"):
                actions = (("trains", None), *actions)
            self._locals.append(_Local(seen, trained, actions))
        return number

    def _check_end(self, ranks: Sequence[Seen]) -> None:
        if waiting := [rank for rank, local in enumerate(ranks) if not local.gone]:
            raise Violation(f"ranks {waiting} wait for ever")
        ways = {local.gone for local in ranks}
        faults = ways.intersection(FAULTS)
        if not faults and ways != {"finished"}:
            raise Violation("ranks fail, and there was no fault")
        heard = [local.heard for local in ranks if local.gone not in ("dies", "leaves")]
        if heard and max(heard) - min(heard) > (1 if faults.intersection(SUDDEN) else 0):
            raise Violation(f"after {sorted(faults)} ranks went on for {heard} exchanges")
        steps = {local.released for local in ranks if local.gone not in ("dies", "leaves")}
        if len(steps) > 1 and not faults.intersection(SUDDEN):
            raise Violation(f"after {sorted(faults)} ranks make {sorted(steps)} steps")

    def _trace(self) -> list[str]:
        state, name = self._doing
        trace = [name]
        while state in self._parents and self._parents[state][0]:
            state, name = self._parents[state]
            trace.append(name)
        return trace[::-1]
