"""`SourceStream`: the stored samples of a source that a loader owns, from any position on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from evenstep.data.reader import SourceReader, StoredSample
from evenstep.errors import InvariantError, MismatchError, SampleError, StorageError
from evenstep.service.source_loader.preparer import may_be_passed_over
from evenstep.strategy.loaders import SourceStripe

_MAX_SKIP = 64  # samples that are read and dropped rather than seeking past them


class SourceStream:
    """Reads a source. Use it in one thread at a time."""

    def __init__(self, reader: SourceReader, share: SourceStripe, passes: int | None) -> None:
        """
        Args:
            reader: of the source; no one else may use it.
            passes: as for `SourceReader.read`.
        """
        self.reader, self.share, self.passes = reader, share, passes
        self._stream: Iterator[StoredSample] | None = None
        self._at = 0  # position of the stream's next sample

    def at(self, positions: Sequence[int]) -> list[StoredSample]:
        """The samples at these positions, which ascend.

        Raises:
            SampleError: one cannot be read.
            MismatchError: the source ends before one of them.
        """
        found: list[StoredSample] = []
        for position in positions:
            skipped = position - self._at
            if self._stream is not None and 0 < skipped <= _MAX_SKIP:
                with suppress(SampleError):  # of a sample that nobody wants
                    deque(self.stored(self._at, skipped), maxlen=0)
            here = list(self.stored(position, 1))
            if not here:
                raise MismatchError(
                    f"source {self.share.source!r} ended before position {position:,}, which it "
                    "had when the step was planned"
                )
            found += here
        return found

    def stored(self, position: int, count: int) -> Iterator[StoredSample]:
        """The samples at `count` positions, of all owners; fewer if the source ends."""
        if self._stream is None or self._at != position:
            self._stream = self.reader.read(position, passes=self.passes, transform=False)
            self._at = position
        try:
            for item in islice(self._stream, count):
                if item.position != self._at:
                    raise InvariantError(
                        f"source {self.share.source!r} gave position {item.position} for {self._at}"
                    )
                self._at += 1
                yield item
        except SampleError:
            self._stream = None
            raise

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Runs of positions to read: begin, end, and whether the loader owns them. Short runs of
        others are read, too, where seeking past them would cost more."""
        share, position = self.share, begin
        if share.next_owned(begin) >= end:
            return
        while position < end:
            owned = share.next_owned(position)
            if owned == position:
                last = (position // share.stripe + 1) * share.stripe
                following = min(end, last) if share.parts > 1 else end
                yield position, following, True
            else:
                following = min(end, owned)
                if owned - position <= _MAX_SKIP and not self.reader.random_access:
                    yield position, following, False
            position = following


class Stretch:
    """The owned samples among some positions of a stream. Iteration reads them; afterwards the
    attributes say how far it has come."""

    def __init__(self, stream: SourceStream, begin: int, count: int) -> None:
        self._stream, self._begin, self._last = stream, begin, begin + count
        self.end = begin
        """The position that comes next."""
        self.over = False
        """Whether the source ends there."""
        self.error: SampleError | None = None
        """Why the sample there cannot be read."""

    def __iter__(self) -> Iterator[StoredSample]:
        for begin, end, owned in self._stream.runs(self._begin, self._last):
            self.end = begin
            while self.end < end:
                try:
                    for item in self._stream.stored(self.end, end - self.end):
                        self.end = item.position + 1
                        if owned:
                            yield item
                    self.over = self.end < end
                except StorageError as error:
                    self.error = error
                    return
                except SampleError as error:
                    bad = self._bad(error) if owned else None
                    if owned and bad is None:
                        self.error = error
                        return
                    self.end += 1
                    if bad is not None:  # or else the loader that owns it reports the failure
                        yield bad
                if self.over:
                    return
        self.end = self._last
        self._find_end()

    def _bad(self, error: SampleError) -> StoredSample | None:
        """The sample that is next, with the error in its place, if it may be passed over."""
        reader = self._stream.reader
        if not may_be_passed_over(reader.source, error):
            return None
        try:
            return StoredSample(self.end, *reader.order(self.end), error)
        except SampleError:  # an iterable that cannot continue
            return None

    def _find_end(self) -> None:
        """A loader that skips positions of others would not notice that the source has ended."""
        size, passes = self._stream.reader.size, self._stream.passes
        if size is not None and passes is not None and self.end >= size * passes:
            self.end, self.over = max(size * passes, self._begin), True
