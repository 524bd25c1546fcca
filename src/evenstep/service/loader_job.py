"""`LoaderJob`: the part of a job that one Source Loader is told.

Its own sources and how samples are measured, and nothing else: a loader of a cluster loads neither
what makes batches nor the descriptions of sources that others have.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.data.source import Source
from evenstep.service.sample_measure import SampleMeasure
from evenstep.service.source_layout import SourceStripe

__all__ = ["LoaderJob"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderJob:
    """Made by `Job.for_loader`."""

    number: int
    """Which loader of the job it is."""
    sources: tuple[Source, ...]
    shares: tuple[SourceStripe, ...]
    """[sources] what of each is this loader's."""
    measure: SampleMeasure
    columns: tuple[str, ...]
    """Of lengths, in the order in which they are measured."""
    seed: int
    passes: int | None
    """How often each source is read; None without end."""
    workers: int
    buffer_size: int
    """Samples of each source that are prepared ahead."""
