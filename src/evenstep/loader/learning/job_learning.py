"""`JobLearning`: what one loader knows of its job, for the options and the ranks that it has.

The first rank learns; `from_first_rank` sends to all others what it found. That takes one exchange,
of which only the first rank's message holds anything. It is made by the exchange thread like those
of a pass: so a rank that dies, fails or leaves meanwhile is an error on all others that names it,
and one that is slow is waited for and named in the log.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from evenstep.errors import PeerError, described
from evenstep.loader.learning.question import JobAnswer, JobQuestion, Learned
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.rank_exchange import RankExchange
from evenstep.loader.transport.session import Doing, Session
from evenstep.protocol import wire

_SERIAL = -1  # of no pass
_POLL_SECONDS = 0.2  # between two checks whether an answer can still come


def from_first_rank(exchange: RankExchange, find: Callable[[], bytes]) -> bytes:
    """What `find` returns on the first rank, which alone calls it. All ranks call this.

    Raises:
        PeerError: the first rank failed, or a rank is lost.
        Exception: on the first rank, what `find` raises.
    """
    place = exchange.place
    if place.size == 1:
        return find()
    ours, theirs = multiprocessing.Pipe()
    left = False
    session = Session(theirs, _SERIAL, lambda: not left, of_processes=True)
    exchange.patience.trainer(Doing.WAITS, -1)
    exchange.begin(session)
    try:
        body = b"" if place.number else find()
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
        return bytes(bodies[0])
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

    @property
    def asked(self) -> bool:
        """Whether something was learned, of any options."""
        return self._found is not None

    def load(self, update_tokens: int | str | None, learned: Learned | None) -> None:
        """What a state says was learned under `update_tokens`; None where it says nothing."""
        if learned is not None:
            self._found = None  # sizes may be others
        self._loaded = update_tokens, learned

    def learn(self, options: LoaderOptions, exchange: RankExchange) -> None:
        """Finds out what is not known yet. All ranks call it."""
        ranks = exchange.place.world_size
        if self.known(options, ranks) is not None:
            return
        question = self._question(options, ranks)

        def find() -> bytes:
            answer = self._ask(question) if question.asks else JobAnswer()
            return question.learned(answer).to_bytes()

        # Even where there is nothing to ask: options of other ranks may differ by mistake.
        learned = Learned.from_bytes(from_first_rank(exchange, find))
        self._found = options, learned

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
        return JobQuestion.of(options, ranks, known=known if same else None)
