"""Options of ``evenstep demo-service``, and the mesh that it trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError

DATA, CONTEXT = 2, 2
"""Data-parallel groups, and context-parallel ranks of each."""
RANKS = DATA * CONTEXT
MICRO_BATCHES = 2
"""Micro-batches of each data-parallel group in a step."""


@dataclass(frozen=True, kw_only=True)
class ServiceDemoOptions:
    """What a user may choose; the command line has the defaults."""

    data: Sequence[Path] = ()
    """Parquet files; none takes Python source files, or with `vision` made-up pictures."""
    column: str = "text"
    """The column of `data` that holds the text."""
    source_column: str = "source"
    """The column of `data` that names each row's source."""
    sources: int = 120
    """Sources at most; the largest are taken."""
    vision: bool = False
    """Train a vision-language model, its encoder balanced apart from its backbone."""
    live: bool = False
    """Let weights follow the losses that trainers report, instead of a schedule."""
    steps: int = 16
    """Steps of each run."""
    samples_per_step: int = 24
    """Samples of a step on all ranks."""
    max_length: int = 4096
    """Tokens of text in a sample; longer documents are cut off."""
    loaders: int = 2
    """Source Loaders."""
    seed: int = 0
    out: Path = Path("out/demo-service")
    """The folder of sources, pictures and figures."""

    def __post_init__(self) -> None:
        bins = DATA * MICRO_BATCHES
        if self.samples_per_step < bins or self.samples_per_step % bins:
            raise ConfigurationError(
                f"samples_per_step={self.samples_per_step} must be a multiple of {bins}, the "
                f"micro-batches of {DATA} data-parallel groups, so that dealing samples as they "
                "come gives each equally many"
            )
        if self.vision and (self.live or self.data):
            raise ConfigurationError(
                "--vision draws made-up pictures by fixed weights; leave out --live and --data, or "
                "--vision"
            )
        for path in self.data:
            if not path.is_file():
                raise ConfigurationError(f"data={path} does not exist, or is not a file")
        if self.out.exists() and not self.out.is_dir():
            raise ConfigurationError(f"out={self.out} is a file; name a folder")

    @property
    def max_tokens(self) -> int:
        """Tokens of a packed row that hold the samples of a micro-batch if all have the largest
        length, so that none waits for the next step, however they are dealt."""
        return self.samples_per_step // (DATA * MICRO_BATCHES) * self.max_length
