"""`JobLearning`: what one loader knows of its job, for the options and the ranks that it has.

The first rank learns; `told_by_all` sends to all others what it found, and what a streamed dataset
begins with on each rank. That takes one exchange. It is made by the exchange thread like those
of a pass: so a rank that dies, fails or leaves meanwhile is an error on all others that names it,
and one that is slow is waited for and named in the log.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace

from evenstep.errors import PeerError, described
from evenstep.loader.learning.question import JobAnswer, JobQuestion, Learned
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.rank_exchange import RankExchange
from evenstep.loader.transport.session import Doing, Session
from evenstep.protocol import wire

_SERIAL = -1  # of no pass
_POLL_SECONDS = 0.2  # between two checks whether an answer can still come


def told_by_all(exchange: RankExchange, find: Callable[[], bytes]) -> list[bytes]:
    """What `find` returns on each rank. All ranks call this.

    Raises:
        PeerError: another rank failed, or is lost.
        Exception: what `find` raises.
    """
    place = exchange.place
    if place.size == 1:
        return [find()]
    ours, theirs = multiprocessing.Pipe()
    left = False
    session = Session(theirs, _SERIAL, lambda: not left, of_processes=True)
    exchange.patience.trainer(Doing.WAITS, -1)
    exchange.begin(session)
    try:
        body = find()
        try:
            ours.send((_SERIAL, wire.encode(wire.LEARNED, body, rank=place.number, round=0)))
            while not ours.poll(_POLL_SECONDS):
                if session.over.is_set():
                    raise EOFError
            _, messages = ours.recv()
            ours.send((_SERIAL, b""))
        except (EOFError, OSError) as error:
            ended = PeerError("the exchange between ranks has ended")
            raise session.broken or exchange.failure or ended from error
        bodies = wire.open_all(messages, wire.LEARNED, 0, rank=place.number, epoch=0)
        while not session.over.wait(_POLL_SECONDS):
            pass
        session.leave()  # else the exchange, if it has failed since, would wait for that
        return [bytes(body) for body in bodies]
    except BaseException as error:
        left = True
        session.leave(None if isinstance(error, KeyboardInterrupt) else described(error))
        raise
    finally:
        exchange.patience.trainer(Doing.HAS_LEFT)
        ours.close()


class JobLearning:
    """In the trainer process."""

    def __init__(self, ask: Callable[[JobQuestion], JobAnswer]) -> None:
        """
        Args:
            ask: has a question answered on samples of the job.
        """
        self._ask = ask
        self._found: tuple[LoaderOptions, Learned] | None = None
        self._loaded: tuple[int | str | None, Learned | None] = None, None
        self._dealt: bool | None = None

    @property
    def asked(self) -> bool:
        """Whether something was learned, of any options."""
        return self._found is not None

    def load(
        self, update_tokens: int | str | None, learned: Learned | None, dealt: bool | None
    ) -> None:
        """What a state says was learned under `update_tokens`, and of `Learned.dealt`; None where
        it says nothing."""
        if learned is not None or (self._found and dealt not in (None, self._found[1].dealt)):
            self._found = None  # sizes may be others
        self._loaded, self._dealt = (update_tokens, learned), dealt

    def learn(self, options: LoaderOptions, exchange: RankExchange) -> None:
        """Finds out what is not known yet. All ranks call it."""
        ranks = exchange.place.world_size
        if self.known(options, ranks) is not None:
            return
        question = self._question(options, ranks)

        first = exchange.place.number == 0

        def find() -> bytes:
            asked = question if first else replace(question, rows=False, samples=0)
            answer = self._ask(asked) if asked.asks or asked.compares else JobAnswer()
            found = question.learned(answer).to_bytes() if first else b""
            return bytes([len(answer.begins)]) + answer.begins + found

        # Even where there is nothing to ask: options of other ranks may differ by mistake.
        told = told_by_all(exchange, find)
        learned = Learned.from_bytes(told[0][1 + told[0][0] :])
        begins = {body[1 : 1 + body[0]] for body in told}
        same = len(begins) == 1 and begins != {b""}
        dealt = same if self._dealt is None else self._dealt
        self._found = options, replace(learned, dealt=dealt)

    def known(self, options: LoaderOptions, ranks: int) -> Learned | None:
        """What was found of these options, for so many ranks."""
        if self._found is None or self._found[0] is not options:
            return None
        return self._found[1] if self._found[1].ranks == ranks else None

    def applied(self, options: LoaderOptions, ranks: int) -> LoaderOptions | None:
        """The options, with what was found of the job; None where samples have to be tried."""
        learned = self.known(options, ranks)
        if learned is None and not (question := self._question(options, ranks)).asks:
            learned = question.learned(JobAnswer())
        return None if learned is None else learned.applied_to(options)

    def _question(self, options: LoaderOptions, ranks: int) -> JobQuestion:
        asked, known = self._loaded
        same = asked == options.update_tokens
        return JobQuestion.of(options, ranks, known=known if same else None, dealt=self._dealt)
