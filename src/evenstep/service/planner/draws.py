"""`Draws`: what a planner draws of the mixture, step after step, and the samples passed over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from evenstep.data.source import Source
from evenstep.errors import SampleError, TooLongError
from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import Metadata, SampleTable
from evenstep.mixture.step_draws import DrawRecord
from evenstep.service.source_loader.preparer import PrepareFailure

if TYPE_CHECKING:
    from evenstep.service.planner.loader_pool import LoaderPool

logger = logging.getLogger("evenstep")

Identities = Mapping[str, tuple[tuple[int, int], ...]]
"""By source, (shard, index) of each, in the order in which they were found."""


class BadSamples:
    """Samples that steps have passed over because they cannot be used. A source may have
    `Source.bad_samples` of them. Loaders describe such a sample by lengths of `BAD`, and the
    mixture draws the next one of the same source, so what is drawn depends on data alone. Each
    counts once, however often its source is read. Those that a job leaves out because they are too
    long count apart, and a source may have any number of them, but not nothing else."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._limits = {source.name: source.bad_samples for source in sources}
        self.found: Identities = {}
        """The bad samples of all steps so far; under the source's name and `TOO_LONG` those that
        are too long. Never changed, only replaced."""

    def note_step(
        self,
        passed_over: Mapping[str, Sequence[tuple[int, int]]],
        failures: Callable[[str, int, int], Sequence[PrepareFailure]],
    ) -> None:
        """Notes the samples that a step has passed over. Idempotent.

        Args:
            passed_over: by source, runs of positions (first, last + 1).
            failures: of a source between two positions.

        Raises:
            SampleError: a source has more than it may have.
        """
        for source, runs in passed_over.items():
            limit, names = self._limits[source], (source, source + TOO_LONG)
            found = {name: dict.fromkeys(self.found.get(name, ())) for name in names}
            for failure in (each for run in runs for each in failures(source, *run)):
                where, long = (failure.shard, failure.index), _is_too_long(failure)
                known = found[source + TOO_LONG if long else source]
                if where in known:
                    continue
                known[where] = None
                if not long and len(known) > limit:
                    raise _too_many(source, limit, failure)
                if not long:
                    logger.warning(
                        "sample %s[%d][%d] is passed over, bad sample %d of at most "
                        "bad_samples=%d of its source: %s",
                        *(source, *where, len(known), limit, failure.error),
                    )
                elif len(known) == 1:
                    logger.warning(
                        "%s; it is left out, as all such samples of source %r are, and counted",
                        *(failure.error, source),
                    )
            noted = {name: tuple(known) for name, known in found.items() if known}
            self.found = {**self.found, **noted}

    def check(self, source: str, failures: Sequence[PrepareFailure]) -> None:
        """Stops the search for a usable sample where there may be none.

        Raises:
            SampleError: these alone are more than the source may have.
        """
        seen: set[tuple[int, int]] = set()
        long: set[tuple[int, int]] = set()
        for failure in failures:
            where = failure.shard, failure.index
            if where in long:  # a whole pass is
                raise SampleError(f"source {source!r} has no other samples: {failure.error}")
            (long if _is_too_long(failure) else seen).add(where)
            if len(seen) > self._limits[source]:
                raise _too_many(source, self._limits[source], failure)

    def counts(self) -> dict[str, int]:
        """By source, of those that have any."""
        return {source: len(found) for source, found in self.found.items()}


TOO_LONG = " (too long)"


def _is_too_long(failure: PrepareFailure) -> bool:
    return isinstance(failure.error, TooLongError)


def _too_many(source: str, limit: int, last: PrepareFailure) -> SampleError:
    return SampleError(
        f"source {source!r} has {limit + 1:,} bad samples, and bad_samples={limit:,} of Source "
        f"allows {limit:,}; the last is {source}[{last.shard}][{last.index}]: {last.error}. Mend "
        "the data, or raise bad_samples; then start again from the last saved state"
    )


class Draws:
    """See the module docstring."""

    def __init__(
        self, mixture: Mixer, metadata: Metadata, loaders: LoaderPool | None, bad: BadSamples
    ) -> None:
        """
        Args:
            metadata: describes the samples that can be drawn.
            loaders: the same, if these are loaders.
        """
        self.mixture, self.metadata, self.bad = mixture, metadata, bad
        self._loaders = loaders

    def begin_draw(self) -> None:
        """Forgets what was drawn before."""
        if self._loaders is not None:
            self._loaders.forget_drawn()

    def next(self) -> tuple[SampleTable, Mapping[str, float]] | None:
        """The mixture's next draw and its weights, for a policy; None after its end."""
        if self.mixture.ended:
            return None
        self.begin_draw()
        drawn = self.mixture.draw(self.mixture.step, self.metadata)
        return drawn, self._noted().weights

    def of_step(self, step: int) -> SampleTable | None:
        """What a strategy has drawn for a step; None if nothing. Draws nothing itself: a mixture
        remembers the step that it drew last."""
        record = self.mixture.record
        if record is None or record.step != step:
            return None
        self._noted()
        return self.mixture.draw(step, self.metadata)

    def _noted(self) -> DrawRecord:
        record = self.mixture.record
        assert record is not None
        if self._loaders is not None:
            self.bad.note_step(record.bad, self._loaders.failures)
        return record
