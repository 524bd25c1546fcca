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
from evenstep.loader.batcher.round_planner import RoundPlanner
from evenstep.loader.batcher.whole_updates import WholeUpdates
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.plan.epoch import Progress, Remaining, Stream
from evenstep.protocol.dealt_windows import DealtWindows
from evenstep.protocol.lending import Lending
from evenstep.protocol.look_ahead import LookAhead
from evenstep.protocol.rank_protocol import RankProtocol
from evenstep.protocol.rank_round import RankRound
from evenstep.protocol.window_buffer import WindowBuffer
from evenstep.protocol.window_size import WindowSize


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


@mutation("shares known, all run out together", LookAhead, "samples_left")
def counts_samples_as_taken_that_have_only_arrived(right):
    return lambda self, buffer, start: max(self._share - buffer.next_number, 0) + buffer.seen


@mutation("a step a round, shares unknown", LookAhead, "look")
def takes_the_end_of_its_source_for_that_of_its_window(right):
    def wrong(self, buffer, *, round, step):
        start = right(self, buffer, round=round, step=step)
        return replace(start, quota=99) if buffer.ended else start

    return wrong


@mutation("no sample waits for ever", WindowBuffer, "remove")
def counts_no_round_of_waiting(right):
    def wrong(self, positions):
        kept = np.delete(self.ages, positions)
        right(self, positions)
        self.ages = kept

    return wrong


@mutation("even, windows grow", RankProtocol, "window_numbers")
def counts_the_memory_of_all_that_has_arrived(right):
    def wrong(self):
        self._buffer.gather()
        return self._buffer.numbers

    return wrong


# Rounds


@mutation("even, own samplers", RankRound, "propose")
def forgets_to_say_that_it_has_finished(right):
    def wrong(self, **options):
        head, message = right(self, **options)
        return head._replace(finished=False), message

    return wrong


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


@mutation("all stop with the first, last ones dropped", RankProtocol, "_conclude")
def keeps_steps_that_some_rank_has_no_samples_for(right):
    def wrong(self, *given):
        options, self.options = self.options, replace(self.options, exhausted="pad")
        steps = right(self, *given)
        self.options = options
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
def deals_an_entry_twice(right):
    return lambda counts, rank, begin: right(counts, rank, max(begin - 1, 0))


@mutation("even, dealt", dealt_windows, "dealt_entries")
def deals_by_the_count_of_its_own_rank(right):
    return lambda counts, rank, begin: begin + rank + len(counts) * np.arange(counts[rank])


@mutation("even, dealt, most samples bad", DealtWindows, "done")
def finishes_while_samples_are_queued(right):
    return property(lambda self: True)


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


@mutation("a rank without samples", Lending, "begin")
def the_rank_lends_that_has_none(right):
    def wrong(self, heads):
        right(self, heads)
        if self.lender is not None:
            self.lender = 0

    return wrong


@mutation("three ranks, one without samples", Lending, "begin")
def every_rank_lends(right):
    def wrong(self, heads):
        right(self, heads)
        if self.lender is not None and not heads[self._rank].finished:
            self.lender = self._rank

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


@mutation("no sample waits for ever", WindowBuffer, "__init__")
def forgets_on_resume_how_long_samples_have_waited(right):
    def wrong(self, start=None):
        right(self, start if start is None else replace(start, ages=start.ages * 0))

    return wrong


@mutation("even, windows grow", LookAhead, "end_round")
def keeps_the_window_of_the_resumed_round(right):
    def wrong(self, heads, totals, left):
        self._left = list(left)

    return wrong


@mutation("even, windows grow", WindowSize, "__init__")
def forgets_on_resume_how_far_windows_had_grown(right):
    return lambda self, policy, buffer_size, start: right(self, policy, buffer_size, None)


@mutation("even, dealt", DealtWindows, "begin")
def deals_once_more_on_resume(right):
    def wrong(self, left):
        self._resumes_round = False
        right(self, left)

    return wrong


@mutation("fixed batches", RoundPlanner, "__init__")
def makes_the_last_step_again_on_resume(right):
    def wrong(self, spec, epoch, protocol, **options):
        received = max(epoch.received - 1, 0)
        right(self, spec, replace(epoch, received=received), protocol, **options)

    return wrong


@mutation("even, own samplers", Remaining, "of")
def receives_nothing_of_its_window_again(right):
    none = np.empty(0, np.int64)
    return lambda share, progress: right(share, Progress(progress.taken, none))


@mutation("updates of 2 steps", EpochProgress, "rank_dict")
def saves_the_round_but_not_its_steps(right):
    return lambda self: {**right(self), "trained": []}


@mutation("updates of 2 steps", Stream, "after")
def shares_out_only_what_no_window_has_held(right):
    def wrong(self, progress):
        none = np.empty(0, np.int64)
        return right(self, [Progress(one.taken, none) for one in progress])

    return wrong


@mutation("even, dealt", Stream, "rest")
def shares_out_the_queues_twice(right):
    return lambda self, entries, begin: right(self, entries, max(begin - 1, 0))
