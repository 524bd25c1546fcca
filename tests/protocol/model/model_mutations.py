"""Deliberate faults in the protocol, its planner or a resume, and a job in which each shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import evenstep.protocol.bodies as bodies
import evenstep.protocol.dealt_windows as dealt_windows
import evenstep.protocol.wire as wire
from evenstep.errors import PeerError
from evenstep.loader.batcher.whole_updates import WholeUpdates
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.plan.epoch import Stream
from evenstep.protocol.dealt_windows import DealtWindows
from evenstep.protocol.lending import Lending
from evenstep.protocol.look_ahead import LookAhead
from evenstep.protocol.rank_protocol import RankProtocol
from evenstep.protocol.window_buffer import WindowBuffer


@dataclass(frozen=True)
class Mutation:
    name: str
    job: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    """From the right function or property to the wrong one."""
    faults: tuple[str, ...]
    """What has to befall a rank for it to show."""


MUTATIONS: list[Mutation] = []


def mutation(
    job: str, owner: Any, attribute: str, *faults: str
) -> Callable[[Callable[[Any], Any]], None]:
    def add(make: Callable[[Any], Any]) -> None:
        name = make.__name__.replace("_", " ")
        MUTATIONS.append(Mutation(name, job, owner, attribute, make, faults))

    return add


# Windows


@mutation("even, own samplers", LookAhead, "missing")
def plans_before_its_window_is_full(right):
    return lambda self, buffer, round: max(right(self, buffer, round) - 1, 0)


@mutation("shares known, all run out together", LookAhead, "_quota")
def looks_ahead_by_its_own_share_only(right):
    def wrong(self):
        size, own = self._size.most, self._left[self._rank]
        return size if own <= 0 else -(-own // -(-own // size))

    return wrong


@mutation("no sample waits for ever", WindowBuffer, "remove")
def counts_no_round_of_waiting(right):
    def wrong(self, positions):
        kept = np.delete(self.ages, positions)
        right(self, positions)
        self.ages = kept

    return wrong


# Rounds


@mutation("even, own samplers", bodies, "decode_proposals")
def ends_the_epoch_when_one_rank_has_finished(right):
    def wrong(*given, **options):
        heads, numbers = right(*given, **options)
        ended = np.full_like(heads.finished, heads.finished.any())
        return replace(heads, finished=ended), numbers

    return wrong


@mutation("even, own samplers", RankProtocol, "_conclude")
def ends_the_epoch_one_round_early(right):
    def wrong(self, *given):
        steps = right(self, *given)
        if self.rounds == 2:
            self._stop()
        return steps

    return wrong


@mutation("all stop with the first", RankProtocol, "_settle")
def stops_while_all_ranks_have_samples(right):
    def wrong(self, *given):
        right(self, *given)
        if self.rounds == 1 and not self.finished:
            self._stop()

    return wrong


@mutation("updates of 2 steps", WholeUpdates, "add")
def hands_out_a_step_before_its_update_is_whole(right):
    return lambda self, planned, progress: right(self, planned, progress) or self.end()


# Dealing


@mutation("even, dealt", dealt_windows, "dealt_entries")
def deals_by_the_count_of_its_own_rank(right):
    return lambda counts, rank, begin: begin + rank + len(counts) * np.arange(counts[rank])


@mutation("even, dealt", DealtWindows, "missing")
def waits_for_samples_that_are_not_dealt(right):
    return lambda self, buffer, round: right(self, buffer, round) + (round == 1)


# Lending


@mutation("a rank without samples", Lending, "begin")
def nobody_lends(right):
    def wrong(self, heads):
        right(self, heads)
        self.lender = None

    return wrong


# Faults


@mutation("fixed batches", wire, "check_no_abort", "aborts")
def ignores_an_abort(right):
    return lambda messages: None


@mutation("fixed batches", wire, "open_all", "leaves")
def takes_silence_for_its_own_message(right):
    def wrong(messages, kind, round, *, rank, epoch):
        try:
            return right(messages, kind, round, rank=rank, epoch=epoch)
        except PeerError:
            return [memoryview(messages[rank])[wire.HEAD_LAYOUT.size :]] * len(messages)

    return wrong


@mutation("fixed batches", wire, "_damage", "misreads")
def trusts_what_a_damaged_message_says(right):
    return lambda message: ""


# Resumes


@mutation("even, own samplers", WindowBuffer, "__init__")
def drops_the_youngest_of_its_window_on_resume(right):
    def wrong(self, start=None):
        if start is not None and len(start.numbers):
            keep = slice(len(start.numbers) - 1)
            start = replace(
                start,
                numbers=start.numbers[keep],
                columns=start.columns[:, keep],
                ages=start.ages[keep],
            )
        right(self, start)

    return wrong


@mutation("updates of 2 steps", EpochProgress, "rank_dict")
def saves_the_round_but_not_its_steps(right):
    return lambda self: {**right(self), "trained": []}


@mutation("even, dealt", Stream, "rest")
def shares_out_the_queues_twice(right):
    return lambda self, entries, begin: right(self, entries, max(begin - 1, 0))
