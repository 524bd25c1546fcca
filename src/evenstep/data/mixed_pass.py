"""`MixedPass`: the samples of a mixture of iterable datasets, in one worker.

A step of the `Mixer` is drawn at a time. To see where a source ends, a step reads a sample or two
more than it takes. A state is that of the mixer before the step, where each source was read then,
and how many samples of the step were given; a resume reads the step's samples again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.batch.measure import length_of
from evenstep.data.resumable import Reading, ResumableIterable, tell_epoch
from evenstep.errors import SampleError
from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import SampleTable


class SourceReading:
    """Reads one source, pass after pass, and holds what was read and not taken."""

    def __init__(
        self,
        name: str,
        reader: ResumableIterable,
        *,
        epoch: int,
        passes: int | None,
        counts_tokens: bool,
    ) -> None:
        """
        Args:
            passes: how often it is read; None is without end.
            counts_tokens: whether lengths are asked for.
        """
        self.name = name
        self._reader, self._epoch, self._passes = reader, epoch, passes
        self._counts_tokens = counts_tokens
        self._reading: Reading | None = None
        self._pass, self._whole, self._empty = 0, True, True
        self._samples: deque[Any] = deque()
        self._begin = 0  # position of the first of them
        self._marks: deque[tuple[int, int, Any]] = deque([(0, 0, None)])
        """Positions, and pass and resume point from which the samples there come."""

    def lengths(self, position: int, count: int) -> list[int]:
        """Tokens of `count` samples from a position on, 0 if they are not counted; fewer at the
        end."""
        first = position - self._begin
        self._fill(first + count)
        found = list(self._samples)[first : first + count]
        return [length_of(sample) if self._counts_tokens else 0 for sample in found]

    def take(self) -> tuple[str, Any]:
        """The next sample, after its name."""
        self._begin += 1
        return f"{self.name} {self._begin - 1}", self._samples.popleft()

    def _fill(self, count: int) -> None:
        while (lacking := count - len(self._samples)) > 0:
            if self._reading is None and not self._open(None):
                return
            # A mark before the last sample, as the next step may begin with it.
            if self._read(lacking - 1):
                assert self._reading is not None
                at = self._begin + len(self._samples)
                self._marks.append((at, self._pass, self._reading.resume_point()))
                self._read(1)

    def _read(self, count: int) -> bool:
        """Reads samples of the pass; False where there were fewer, and it has ended."""
        assert self._reading is not None
        got = self._reading.take(count)
        self._samples.extend(got)
        self._empty &= not got
        if len(got) < count:
            self._end()
        return len(got) == count

    def _open(self, point: Any) -> bool:
        """Begins or resumes a pass; False if there are no more."""
        if self._passes is not None and self._pass >= self._passes:
            return False
        tell_epoch(self._reader.dataset, self._epoch + self._pass)
        self._reading = self._reader.read(point)
        self._whole = self._empty = point is None  # nothing was read of a whole one
        return True

    def _end(self) -> None:
        if self._empty and self._passes is None:
            raise SampleError(
                f"source {self.name!r} yields no sample in this worker, and stop='repeat' reads it "
                "again and again; use fewer workers or ranks than it has shards, or another rule"
            )
        self._reader.rewinder.finish(whole=self._whole)
        self._reading, self._pass = None, self._pass + 1

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample is read again."""
        while len(self._marks) > 1 and self._marks[1][0] <= self._begin:
            self._marks.popleft()
        at, pass_number, point = self._marks[0]
        return {"pass": pass_number, "point": point, "at": at, "skip": self._begin - at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pass, self._begin = int(state["pass"]), int(state["at"])
        self._marks = deque([(self._begin, self._pass, state["point"])])
        if state["point"] is not None:
            self._open(state["point"])
        self._fill(skip := int(state["skip"]))
        if len(self._samples) < skip:
            raise SampleError(
                f"source {self.name!r} yields fewer samples than when the state was saved; resume "
                "with the dataset that it was saved with"
            )
        for _ in range(skip):
            self.take()


class MixedPass(Iterator[Any]):
    """See the module docstring."""

    def __init__(self, mixer: Mixer, sources: Sequence[SourceReading], samples: int | None) -> None:
        """
        Args:
            sources: in the order in which the mixer numbers them.
            samples: after so many the pass ends; None where only the mixer ends it.
        """
        self._mixer, self._sources, self._left = mixer, sources, samples
        self._drawn: deque[int] = deque()  # sources of the step's samples that are left
        self._given = 0  # samples of the step
        self.names: list[str] = []
        """Source and number of each sample that was yielded; the reader clears it."""
        self._note()

    def __next__(self) -> Any:
        while not self._drawn:
            if self._left == 0 or self._mixer.ended:
                raise StopIteration
            self._note()
            most = self._mixer.options.samples_per_step
            if self._left is not None and most is not None and self._left < most:
                self._mixer = self._mixer.with_samples(self._left)
            self._drawn.extend(self._mixer.draw(self._mixer.step, self).source.tolist())
            if self._left is not None:
                self._left -= len(self._drawn)
        name, sample = self._sources[self._drawn.popleft()].take()
        self.names.append(name)
        self._given += 1
        return sample

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """As `evenstep.mixture.sample_table.Metadata` does."""
        lengths = self._sources[source].lengths(position, count)
        positions = np.arange(position, position + len(lengths))
        return SampleTable(
            sources=self._mixer.sources,
            source=np.full(len(lengths), source, np.int32),
            position=positions,
            shard=np.zeros(len(lengths), np.int32),
            index=positions,
            lengths={"text": np.array(lengths, np.int64)},
        )

    def _note(self) -> None:
        """Notes the state before a step."""
        self._before = self._mixer.state, [each.state_dict() for each in self._sources], self._left
        self._given = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample comes from."""
        mixer, sources, left = self._before
        return {
            "mixer": self._mixer.state_dict(mixer),
            "sources": sources,
            "left": left,
            "given": self._given,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mixer.load_state_dict(state["mixer"])
        for source, saved in zip(self._sources, state["sources"], strict=True):
            source.load_state_dict(saved)
        self._left = state["left"]
        self._note()
        for _ in range(state["given"]):
            next(self)
        self.names.clear()
