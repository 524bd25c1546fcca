"""`JobQuestion`: what to ask of a job before its first step, and the answer on a few samples; and
`Learned`: what follows from it, plain enough to be sent to other ranks and to be saved."""

from __future__ import annotations

import math
import pickle
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.blank import Blank, BlankRow
from evenstep.batch.prepare import PreparingCollator
from evenstep.data.mixed import Mixture
from evenstep.data.shares import is_undivided
from evenstep.errors import SampleError, described
from evenstep.loader.learning.probe import Run
from evenstep.loader.learning.rows import asks_rows, found_of_rows
from evenstep.loader.options import LoaderOptions
from evenstep.loader.transport.first_rows import FEW, FirstRows
from evenstep.loader.workers.chunks import ChunkRequest, IndexedDataset, Preparation
from evenstep.loader.workers.worker_start import epoch_seed
from evenstep.plan.policies.even import Even
from evenstep.plan.too_long import pieces_of
from evenstep.plan.update_size import UpdateSize, nothing_to_choose, sizes_of
from evenstep.plan.value_checks import AUTO, MAX_LENGTH


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was found of a job of so many ranks."""

    ranks: int
    collate: Mapping[str, Any] | None = None
    """`PreparingCollator.found`; None where the collate function does not prepare samples, or
    nothing had to be found."""
    blank: Blank | BlankRow | None = None
    """None where there is none, or it was given."""
    accumulate: int | None = None
    """Steps of an update; None where `update_tokens` does not decide."""
    sizes: tuple[tuple[int, int], ...] = ()
    """What `accumulate` may be instead: see `RankProtocol`."""
    target_tokens: int | None = None
    """Of a group, where an update needs smaller groups than the policy forms."""
    repeatable: bool = True
    """A sample that is made twice has the same length, as far as is known."""
    dealt: bool = False
    """A streamed dataset begins alike on all ranks, so each is dealt a share of it."""

    def applied_to(self, options: LoaderOptions) -> LoaderOptions:
        """Options that the batcher runs with."""
        changes: dict[str, Any] = {"dealt": self.dealt}
        if self.collate is not None:
            made = options.collate_fn
            if not isinstance(made, PreparingCollator):
                made = PreparingCollator(collate_fn=made)
            made = replace(made, packed=options.policy.packed)
            changes["collate_fn"] = made.with_found(self.collate)
        if self.blank is not None:
            changes["blank"] = self.blank
        if self.accumulate is not None:
            changes["accumulate"] = self.accumulate
            changes["sizes"] = self.sizes
        if self.target_tokens is not None:
            policy: Any = options.policy
            changes["policy"] = replace(policy, target_tokens=self.target_tokens)
        return replace(options, **changes)

    # For other ranks

    def to_bytes(self) -> bytes:
        return zlib.compress(pickle.dumps(self), 1)  # of a blank, most is white

    @classmethod
    def from_bytes(cls, data: bytes) -> Learned:
        learned: Learned = pickle.loads(zlib.decompress(data))
        return learned

    # For a loader's state

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Learned:
        """What `saved` returned."""
        sizes = tuple((steps, tokens) for steps, tokens in saved.get("sizes", ()))
        return cls(**{**saved, "sizes": sizes})

    def saved(self) -> dict[str, Any]:
        """JSON-able: what a resumed job takes from its state."""
        sizes = {"sizes": [list(size) for size in self.sizes]} if self.sizes else {}
        return {
            "ranks": self.ranks,
            "accumulate": self.accumulate,
            **sizes,
            "target_tokens": self.target_tokens,
            "repeatable": self.repeatable,
        }


_LENGTHS, _PREPARED_LENGTHS, _FEW = 256, 64, 32
"""Samples that are measured to choose the size of groups; where `collate_fn` prepares them; and for
`Even`, whose groups follow how full those before were."""
_CHUNK = 4
"""Samples that are measured at a time; the first ones twice."""


class Measured(NamedTuple):
    """Lengths of some samples."""

    lengths: Int64Array
    """[measured] of those that are good."""
    share: float
    """Which share of the samples drawn they are."""
    repeatable: bool
    """Samples that were measured twice had the same length."""


class JobAnswer(NamedTuple):
    """What was found of a job."""

    collate: Mapping[str, Any] | None = None
    blank: Blank | BlankRow | None = None
    measured: Measured | None = None
    begins: bytes = b""
    """`FirstRows.digests` of a streamed dataset."""


@dataclass(frozen=True, kw_only=True)
class JobQuestion:
    """Picklable as far as the options are."""

    options: LoaderOptions
    ranks: int
    """Data-parallel ranks."""
    known: Learned | None = None
    """Sizes of updates that need not be found."""
    rows: bool = False
    """Ask what the collate function makes of a few rows."""
    compares: bool = False
    """Ask what a streamed dataset begins with, on each rank."""
    samples: int = 0
    """Samples to measure, drawn at random, but alike for any number of ranks."""
    seconds: float = math.inf
    """Measure no more after so long, once there are enough of them."""
    enough: int = 1

    @classmethod
    def of(
        cls,
        options: LoaderOptions,
        ranks: int,
        *,
        known: Learned | None = None,
        dealt: bool | None = None,
    ) -> JobQuestion:
        """What the first pass of a loader needs to know.

        Args:
            known: what a state says of the sizes of updates, on so many ranks.
            dealt: what it says of `Learned.dealt`.
        """
        known = known if known is not None and known.ranks == ranks else None
        sized = options.update_tokens is not None and not nothing_to_choose(
            options.policy, options.update_tokens, ranks
        )
        by_length = isinstance(options.policy, Even) or not options.policy.packed
        measures = sized and known is None and by_length and not options.iterable
        rows = asks_rows(options, ranks)
        prepared = rows or options.prepare is not None
        even = isinstance(options.policy, Even)
        few = _FEW if even else _PREPARED_LENGTHS if prepared else _LENGTHS
        return cls(
            options=options,
            ranks=ranks,
            rows=rows,
            known=known,
            compares=dealt is None and ranks > 1 and is_undivided(options.dataset),
            samples=few if measures and hasattr(options.dataset, "__len__") else 0,
        )

    @property
    def asks(self) -> bool:
        """Whether samples are needed to answer, but for `compares`."""
        return self.rows or self.samples > 0

    def answer(self, run: Run) -> JobAnswer:
        """
        Args:
            run: runs functions on the dataset: see `evenstep.loader.learning.probe`.

        Raises:
            CollateError: see `found_of_rows`.
            SampleError: none of the samples is good.
        """
        collate, blank = None, None
        options = self.options
        if self.rows:
            rows = partial(found_of_rows, options)
            ((collate, blank),) = run(rows, options.dataset, [None], 1)
            options = Learned(ranks=self.ranks, collate=collate).applied_to(options)
        measured = _measured(options, run, self) if self.samples else None
        begins = b""
        if self.compares:
            (begins,) = run(_beginning, options.dataset, [None], 1)
        return JobAnswer(collate, blank, measured, begins)

    def learned(self, answer: JobAnswer) -> Learned:
        """What follows from the answer."""
        options, measured = self.options, answer.measured
        asked = options.update_tokens
        found = replace(
            self.known or Learned(ranks=self.ranks), collate=answer.collate, blank=answer.blank
        )
        if asked is None or self.known is not None:
            return found
        lengths = None if measured is None else measured.lengths
        if isinstance(options.policy, Even) and options.policy.fits_memory and asked != AUTO:
            sizes = sizes_of(options.policy, int(asked), ranks=self.ranks, lengths=lengths)
            return replace(found, accumulate=sizes[0][0], sizes=sizes)
        size = UpdateSize.of(options.policy, asked, ranks=self.ranks, lengths=lengths)
        target = getattr(size.policy, "target_tokens", None)
        return replace(
            found,
            accumulate=size.accumulate,
            target_tokens=None if size.policy is options.policy else target,
            repeatable=measured is None or measured.repeatable,
        )


def _beginning(dataset: Any, item: None) -> bytes:
    digests = FirstRows.of_stream(map(pickle.dumps, islice(dataset, FEW))).digests
    return np.array(digests, np.uint64).tobytes()


def _measured(options: LoaderOptions, run: Run, question: JobQuestion) -> Measured:
    source, measure = options.source, partial(_measure, options)
    size, until = len(source), time.monotonic() + question.seconds
    count = min(size, question.samples)
    if isinstance(source, Mixture):
        order = source.typical(count, options.seed).tolist()
        count = len(order)
    else:
        order = np.random.default_rng(options.seed).choice(size, count, replace=False).tolist()
    places = [*range(0, count, _CHUNK), count]
    chunks = [(order[i:j], i == 0) for i, j in pairwise(places)]
    lengths: list[int] = []
    drawn, bad, same = 0, "", True
    found = run(measure, source, chunks, max(1, options.num_workers))
    for (indices, _), (of_chunk, why, alike) in zip(chunks, found):
        drawn += len(indices)
        lengths += of_chunk
        bad, same = why or bad, same and alike
        if drawn >= question.enough and time.monotonic() > until:
            break
    if not lengths:
        raise SampleError(f"none of {drawn} samples is good: {bad}")
    return Measured(np.array(lengths, np.int64), len(lengths) / drawn, same)


def _measure(
    options: LoaderOptions, source: Any, asked: tuple[list[int], bool]
) -> tuple[list[int], str, bool]:
    """Lengths; why the last bad sample is, or nothing; and whether lengths are the same again.

    Args:
        asked: indices, and whether they are measured twice.
    """
    indices, twice = asked
    lengths, bad = _lengths(options, source, indices)
    return lengths, bad, not twice or _lengths(options, source, indices)[0] == lengths


def _lengths(options: LoaderOptions, source: Any, indices: list[int]) -> tuple[list[int], str]:
    """Lengths of good samples. The loader skips the others, or says what is bad."""
    preparation = Preparation(options.prepare, skip_bad=True)
    request = ChunkRequest(epoch_seed(options.seed, 0), tuple(indices))
    raw = IndexedDataset(source, preparation)[request]
    longest, choice = options.policy.max_length or MAX_LENGTH, options.too_long
    lengths, bad = [], ""
    for sample, name in zip(raw.samples, raw.names):
        try:
            if isinstance(sample, SampleError):
                raise sample
            length = int(options.measure([sample], [name])[0, 0])
            lengths += pieces_of(np.array([length]), longest, choice).lengths.tolist()
        except Exception as error:
            bad = str(error) if isinstance(error, SampleError) else f"{name}: {described(error)}"
    return lengths, bad
