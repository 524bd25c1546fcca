"""What a user may choose about the demo. Every value is checked here, before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of a demo that trains a model with fixed batches and with `Even`."""

    out: Path
    """The folder of the picture and the figures."""
    world_size: int = 2
    max_tokens: int = 1536
    """Token budget of a batch on one rank, padding included."""
    seed: int = 0
    seconds: float = 100.0
    """About how long all training runs may take together; decides the number of samples."""
    samples: int | None = None
    """Samples to train on, rounded down to a multiple of `world_size`; overrides `seconds`."""
    accumulate: int = 4
    """Steps whose gradients are added up before the optimizer steps, as with few ranks one does: an
    update then holds as many groups as a step of more ranks."""
    repeats: int = 3
    """Times that both runs are made, each with initial weights and an order of its own."""
    num_workers: int = 1
    """Processes per rank that prepare samples, the same for both runs."""

    def __post_init__(self) -> None:
        check_at_least(2, world_size=self.world_size)
        check_at_least(64, max_tokens=self.max_tokens)
        check_at_least(0, seed=self.seed, num_workers=self.num_workers)
        check_at_least(1, accumulate=self.accumulate)
        check_at_least(2, repeats=self.repeats)  # a spread needs two
        check_at_least(self.world_size, samples=self.samples)
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ConfigurationError(f"seconds={self.seconds} must be positive and finite")


@dataclass(frozen=True, kw_only=True)
class DemoOptions(TrainingOptions):
    """Options of ``evenstep demo``."""

    out: Path = Path("out/demo")
    data: Path | None = None
    """A Parquet file with one document a row; None takes the standard library."""
    column: str = "text"
    """The column of `data` that holds the text."""
    max_length: int | None = None
    """Longer documents are left out. Two thirds of `max_tokens` by default."""
    vocab_size: int = 1024
    hidden_size: int = 96
    layers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(64, max_length=self.max_length)
        check_at_least(1, layers=self.layers)
        check_at_least(257, vocab_size=self.vocab_size)  # all bytes and the end of a document
        if self.max_length is not None and self.max_length > self.max_tokens:
            raise ConfigurationError(
                f"max_length={self.max_length:,} is over max_tokens={self.max_tokens:,}, and a "
                "document must fit the budget; lower the one or raise the other"
            )

    @property
    def length_limit(self) -> int:
        """`max_length` with its default filled in."""
        return self.max_length or 2 * self.max_tokens // 3
