"""`BadSamples`: the samples that steps have skipped because they cannot be used.

A source may have `Source.bad_samples` of them. Loaders describe such a sample by lengths of `BAD`,
and the mixture draws the next one of the same source, so what is drawn depends on data alone. Each
counts once, however often its source is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from evenstep.data.source import Source
from evenstep.errors import SampleError
from evenstep.service.source_loader.preparer import PrepareFailure

logger = logging.getLogger("evenstep")

Identities = Mapping[str, tuple[tuple[int, int], ...]]
"""By source, (shard, index) of each, in the order in which they were found."""


class BadSamples:
    """See the module docstring."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._limits = {source.name: source.bad_samples for source in sources}
        self.found: Identities = {}
        """The bad samples of all steps so far. Never changed, only replaced."""

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
            self._note(source, [each for run in runs for each in failures(source, *run)])

    def _note(self, source: str, failures: Sequence[PrepareFailure]) -> None:
        known = dict.fromkeys(self.found.get(source, ()))
        for failure in failures:
            where = failure.shard, failure.index
            if where in known:
                continue
            known[where] = None
            if len(known) > self._limits[source]:
                raise _too_many(source, self._limits[source], failure)
            logger.warning(
                "sample %s[%d][%d] is passed over, bad sample %d of at most bad_samples=%d of its "
                "source: %s",
                *(source, *where, len(known), self._limits[source], failure.error),
            )
        self.found = {**self.found, source: tuple(known)}

    def check(self, source: str, failures: Sequence[PrepareFailure]) -> None:
        """Stops the search for a usable sample where there may be none.

        Raises:
            SampleError: these alone are more than the source may have.
        """
        seen: set[tuple[int, int]] = set()
        for failure in failures:
            seen.add((failure.shard, failure.index))
            if len(seen) > self._limits[source]:
                raise _too_many(source, self._limits[source], failure)

    def counts(self) -> dict[str, int]:
        """By source, of those that have any."""
        return {source: len(found) for source, found in self.found.items() if found}


def _too_many(source: str, limit: int, last: PrepareFailure) -> SampleError:
    return SampleError(
        f"source {source!r} has {limit + 1:,} bad samples, and bad_samples={limit:,} of Source "
        f"allows {limit:,}; the last is {source}[{last.shard}][{last.index}]: {last.error}. Mend "
        "the data, or raise bad_samples; then start again from the last saved state"
    )
