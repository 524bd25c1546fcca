"""`LoaderJob`: the part of a job that one Source Loader is sent."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from evenstep.data.source import Source
from evenstep.service.job.sample_measure import SampleMeasure
from evenstep.strategy.loaders import SourceStripe


@dataclass(frozen=True, kw_only=True)
class LoaderPart:
    """What tells the loaders of a job apart."""

    number: int
    """Which loader of the job it is."""
    shares: tuple[SourceStripe, ...]
    """[sources] the part of each that the loader owns."""
    workers: int
    buffer_bytes: int
    """Of samples that are prepared ahead, of all sources together."""

    @property
    def role(self) -> str:
        """Its name."""
        return f"Source Loader {self.number}"


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderJob(LoaderPart):
    """The part of a job that one Source Loader is sent: its own sources, and how to measure
    samples. It has nothing for which a loader's process would load torch. Made by
    `Job.for_loader`."""

    sources: tuple[Source, ...]
    measure: SampleMeasure
    columns: tuple[str, ...]
    """Names of lengths, in the order in which they are measured."""
    seed: int
    passes: int | None
    """How often each source is read; None means endlessly."""
    buffer_size: int
    """Samples of each source that are prepared ahead, if `buffer_bytes` allows."""
    decoded_bytes: int

    @property
    def part(self) -> LoaderPart:
        return LoaderPart(**{each.name: getattr(self, each.name) for each in fields(LoaderPart)})

    def of_part(self, part: LoaderPart) -> LoaderJob:
        """The job of another loader, whose sources this one has, too."""
        by_name = {source.name: source for source in self.sources}
        sources = tuple(by_name[share.source] for share in part.shares)
        return replace(self, sources=sources, **vars(part))

    def does_as(self, other: LoaderJob) -> bool:
        """Whether two loaders of a job are the same except for their number."""
        mine, its = (
            (each.shares, each.workers, each.buffer_bytes, each.sources) for each in (self, other)
        )
        return mine == its
