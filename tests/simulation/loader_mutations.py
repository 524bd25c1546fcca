"""Deliberate faults in the loader. The simulation must find each."""

from __future__ import annotations

from evenstep.loader.batcher.batcher_handles import BatcherProcess
from evenstep.loader.batcher.intake import IndexFeed, Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import PipePorts
from evenstep.loader.batcher.sample_store import SampleStore
from evenstep.loader.iterator import StepIterator
from evenstep.loader.resume.epoch_cursor import EpochCursor
from evenstep.loader.runtime import Feeder
from evenstep.loader.transport.lifelines import Lifelines
from evenstep.loader.transport.peers import WindowChecksum
from evenstep.loader.transport.rank_exchange import GlooExchange
from evenstep.loader.transport.session import Session
from evenstep.loader.workers.iterable import ChunkedIterable
from mutation import Mutation

LOADER_MUTATIONS = (
    Mutation("a credit is lost", PipePorts.credit, "self._credits.put(None)"),
    Mutation("no end of the queue", EpochRun._collate, "self._batches.put(None)"),
    Mutation(
        "an abort is not announced", EpochRun._plan, "self._ports.exchange(_abort(error))", near=4
    ),
    Mutation("a wake-up is forgotten", SampleStore.take, "self._changed.notify_all()", near=43),
    Mutation(
        "nobody is told that no credit will come",
        PipePorts.end_delivery,
        "self._credits.put(None)",
        near=97,
    ),
    Mutation(
        "the state is one step late",
        EpochCursor.note_step,
        "self._progress = -> self._progress, self._late = getattr(self, '_late', self._progress),",
        near=5,
    ),
    Mutation(
        "a feeder that has ended does not read",
        Feeder._run,
        "while self._deals is not None and -> while False and",
        near=52,
    ),
    Mutation(
        "indices of the pass before",
        IndexFeed.__iter__,
        "if serial != self.serial: -> if False:",
        near=1197,
    ),
    Mutation(
        "steps of the pass before",
        BatcherProcess.get,
        "if serial in (self._serial, ANY_PASS): -> if True:",
        near=1273,
    ),
    Mutation("the end is not awaited", StepIterator._next, "self._await_others()", near=199),
    Mutation("a reason is not passed on", Session.leave, "self._reason = reason", near=37),
    Mutation(
        "what was asked for samples that failed is not read",
        IndexFeed.drain,
        "not (over.is_set() or self._kept) -> False",
        near=100677,
    ),
    Mutation(
        "a lost message is not explained",
        StepIterator._next,
        "known = self._session.broken or self._exchange.failure -> known = self._exchange.failure",
        near=101332,
    ),
    Mutation(
        "a chunk of skipped samples is none",
        WindowChecksum.note,
        "if len(numbers): -> if True:",
        near=100121,
    ),
    Mutation(
        "an error of another rank at the end",
        GlooExchange._serve,
        "session.note(messages)",
        near=199,
    ),
    Mutation(
        "messages that nobody reads are not dropped",
        Session.end,
        "while not self._silent and self._alive() -> while False",
        near=516,
    ),
    Mutation(
        "a worker whose turn it is not begins",
        ChunkedIterable.__iter__,
        "worker < states.turn -> False",
        near=140,
    ),
    Mutation(
        "one worker's end is that of all",
        Intake._streamed,
        "max(self._spec.num_workers, 1) -> 1",
        near=45,
    ),
    Mutation(
        "samples before a checkpoint come again",
        Intake._streamed,
        "numbers[positions] = remaining -> numbers[:] = begin + np.arange(chunk.size)",
        near=43,
    ),
    Mutation(
        "a failure is forgotten",
        SampleStore.end,
        "self._failure or failure -> self._failure",
        near=8,
    ),
    Mutation("nobody looks for lost ranks", Lifelines.wait, "self.check(work, group)", near=32),
    Mutation("a rank leaves without a word", Lifelines.close, "self._tell(rank, loss)", near=3),
    Mutation(
        "nobody makes sure that ranks have met",
        GlooExchange._connect,
        'self._gather(b"met")',
        near=462,
    ),
)
