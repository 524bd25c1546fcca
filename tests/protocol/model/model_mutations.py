"""Deliberate faults in the protocol, its planner or a resume, by the job in which each shows."""

from __future__ import annotations

from evenstep.loader.batcher.round_planner import RoundPlanner
from evenstep.loader.batcher.whole_updates import WholeUpdates
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.plan.epoch import Remaining, Stream
from evenstep.protocol.bodies import decode_proposals
from evenstep.protocol.dealt_windows import DealtWindows
from evenstep.protocol.look_ahead import LookAhead
from evenstep.protocol.rank_protocol import RankProtocol
from evenstep.protocol.rank_round import Lending, RankRound
from evenstep.protocol.window_buffer import WindowBuffer
from evenstep.protocol.window_size import WindowSize
from evenstep.protocol.wire import _damage, check_no_abort, open_all
from mutation import Mutation

BEFALLS = {
    "ignores an abort": ("aborts",),
    "takes silence for its own message": ("leaves",),
    "trusts what a damaged message says": ("misreads",),
}
"""What has to befall a rank for a fault to show."""

MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "even, own samplers": (
        Mutation(
            "plans before its window is full",
            LookAhead.missing,
            "self._quota() -> self._quota() - 1",
        ),
        Mutation(
            "forgets to say that it has finished",
            RankRound.propose,
            "ProposalHead(True, -> ProposalHead(False,",
        ),
        Mutation(
            "ends the epoch when one rank has finished",
            decode_proposals,
            "ProposalHeads(finished, -> ProposalHeads(finished | finished.any(),",
        ),
        Mutation(
            "ends the epoch one round early",
            RankProtocol._conclude,
            "self.steps += len(totals) -> "
            "self.steps += len(totals); self.rounds == 2 and self._stop()",
        ),
        Mutation(
            "drops the youngest of its window on resume",
            WindowBuffer.__init__,
            "start.columns, start.numbers, start.ages -> "
            "start.columns[:, :-1], start.numbers[:-1], start.ages[:-1]",
        ),
        Mutation(
            "receives nothing of its window again",
            Remaining.of,
            "progress.unfinished, late -> late",
        ),
    ),
    "shares known, all run out together": (
        Mutation("looks ahead by its own share only", LookAhead._quota, "self._left.max() -> own"),
        Mutation(
            "counts samples as taken that have only arrived",
            LookAhead.samples_left,
            "self._share - buffer.taken -> self._share - buffer.next_number",
        ),
    ),
    "a step a round, shares unknown": (
        Mutation(
            "takes the end of its source for that of its window",
            LookAhead.look,
            "replace(start, -> replace(start, quota=99 if buffer.ended else start.quota,",
        ),
    ),
    "no sample waits for ever": (
        Mutation(
            "counts no round of waiting", WindowBuffer.remove, "self.ages + older -> self.ages"
        ),
        Mutation(
            "forgets on resume how long samples have waited",
            WindowBuffer.__init__,
            "start.numbers, start.ages -> start.numbers, start.ages * 0",
        ),
    ),
    "even, windows grow": (
        Mutation(
            "counts the memory of all that has arrived",
            RankProtocol.window_numbers,
            "[: self._windows.count(self._buffer, self.rounds)] ->",
        ),
        Mutation(
            "keeps the window of the resumed round",
            LookAhead.end_round,
            "self._resumed_quota = None",
        ),
        Mutation(
            "forgets on resume how far windows had grown",
            WindowSize.__init__,
            "self._policy = policy -> self._policy, start = policy, None",
        ),
    ),
    "all stop with the first, last ones dropped": (
        Mutation(
            "keeps steps that some rank has no samples for",
            RankProtocol._conclude,
            'self.options.exhausted == "stop" -> False',
        ),
    ),
    "all stop with the first": (
        Mutation(
            "stops while all ranks have samples",
            RankProtocol._settle,
            "if unplannable and -> if (unplannable or self.rounds == 1) and",
        ),
    ),
    "updates of 2 steps": (
        Mutation(
            "hands out a step before its update is whole",
            WholeUpdates.add,
            "updates.micro_step(planned.index + 1) -> False",
        ),
        Mutation(
            "saves the round but not its steps",
            EpochProgress.rank_dict,
            "np.searchsorted(window, self.trained).tolist() -> []",
        ),
        Mutation(
            "shares out only what no window has held", Stream.after, "one.unfinished, late -> late"
        ),
    ),
    "even, dealt": (
        Mutation(
            "deals an entry twice",
            DealtWindows._deal,
            "self._rank, self.next_entry -> self._rank, max(self.next_entry - 1, 0)",
        ),
        Mutation(
            "deals by the count of its own rank",
            DealtWindows._deal,
            "dealt_entries(counts, self._rank, self.next_entry) -> "
            "self.next_entry + self._rank + len(counts) * np.arange(counts[self._rank])",
        ),
        Mutation(
            "waits for samples that are not dealt",
            DealtWindows.missing,
            "return missing -> return missing + (round == 1)",
        ),
        Mutation(
            "deals once more on resume", DealtWindows.begin, "not self._resumes_round -> True"
        ),
        Mutation(
            "shares out the queues twice",
            Stream.rest,
            "entries =  -> begin = max(begin - 1, 0); entries = ",
        ),
    ),
    "even, dealt, most samples bad": (
        Mutation(
            "finishes while samples are queued",
            DealtWindows.done.fget,
            "self.next_entry == self._total and not self._queued.any() -> True",
        ),
    ),
    "a rank without samples": (
        Mutation(
            "nobody lends", Lending.begin, "int(heads.finished.argmin()) if asked else None -> None"
        ),
        Mutation(
            "the rank lends that has none", Lending.begin, "int(heads.finished.argmin()) -> 0"
        ),
    ),
    "fixed batches": (
        Mutation(
            "ignores an abort", check_no_abort, "not message.startswith(_ABORT_START) -> True"
        ),
        Mutation(
            "takes silence for its own message",
            open_all,
            "if not message: -> if not message:\n"
            "            return [memoryview(messages[rank])[HEAD_LAYOUT.size :]] * len(messages)\n"
            "        if False:",
        ),
        Mutation("trusts what a damaged message says", _damage, 'magic,  -> return ""; magic, '),
        Mutation(
            "makes the last step again on resume",
            RoundPlanner.__init__,
            "= epoch.received -> = max(epoch.received - 1, 0)",
        ),
    ),
}
