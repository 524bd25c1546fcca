"""What a user may choose about the demo. Every value is checked here, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least

DATA, CONTEXT = 2, 2
"""Data-parallel groups, and context-parallel ranks of each."""
RANKS = DATA * CONTEXT


@dataclass(frozen=True, kw_only=True)
class ServiceDemoOptions:
    """Options of ``evenstep demo-service``."""

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
    steps: int | None = None
    """Steps of each run; None is 16, and with `vision` 8."""
    samples_per_step: int | None = None
    """Samples of a step on all ranks; None is 24, and with `vision` 32."""
    micro_batches: int = 2
    """Micro-batches of each data-parallel group in a step."""
    max_length: int | None = None
    """Tokens of text in a sample; documents that are longer are cut into pieces, each a sample.
    None is 4,096, and with `vision` 1,024."""
    loaders: int = 2
    """Source Loaders."""
    seed: int = 0
    out: Path = Path("out/demo-service")
    """The folder of sources, pictures and figures."""

    def __post_init__(self) -> None:
        check_at_least(
            1,
            sources=self.sources,
            steps=self.steps,
            samples_per_step=self.samples_per_step,
            micro_batches=self.micro_batches,
            loaders=self.loaders,
        )
        check_at_least(0, seed=self.seed)
        check_at_least(64, max_length=self.max_length)
        bins = DATA * self.micro_batches
        if self.sample_count < bins or self.sample_count % bins:
            raise ConfigurationError(
                f"samples_per_step={self.sample_count} must be a multiple of {bins}, the "
                f"micro-batches of {DATA} data-parallel groups, so that dealing samples as they "
                "come gives each equally many"
            )
        if self.vision and self.live:
            raise ConfigurationError(
                "live=True: the vision-language run has no live weights; leave out one of "
                "--vision and --live"
            )
        for path in self.data:
            if not path.is_file():
                raise ConfigurationError(f"data={path} does not exist, or is not a file")
        if self.out.exists() and not self.out.is_dir():
            raise ConfigurationError(f"out={self.out} is a file; name a folder")

    @property
    def step_count(self) -> int:
        """`steps` with its default filled in."""
        return self.steps or (8 if self.vision else 16)

    @property
    def sample_count(self) -> int:
        """`samples_per_step` with its default filled in."""
        return self.samples_per_step or (32 if self.vision else 24)

    @property
    def length_limit(self) -> int:
        """`max_length` with its default filled in."""
        return self.max_length or (1024 if self.vision else 4096)

    @property
    def max_tokens(self) -> int:
        """Tokens of a packed row that hold the samples of a micro-batch if all have the largest
        length, so that none waits for the next step, however they are dealt."""
        return self.sample_count // (DATA * self.micro_batches) * self.length_limit
