"""`JobLearning`: what one loader knows of its job, for the options and the ranks that it has."""

from __future__ import annotations

from collections.abc import Callable

from evenstep.loader.learning.agreement import from_first_rank
from evenstep.loader.learning.learned import Learned
from evenstep.loader.learning.question import JobAnswer, JobQuestion
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.rank_exchange import RankExchange


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
