"""What the ODB paper prints in Tables 4, 5, 13 and 14, as far as it concerns shapes of batches.

Sample counts and settings beside the figures are the paper's too: Table 10 and Appendix I. Of each
data set, 95 % is trained on: with ``floor(0.95 * samples)`` the printed updates per epoch of all
fixed-batch rows come out exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.plan import TokenBudget

RANKS = 8


@dataclass(frozen=True)
class OdbRule(TokenBudget):
    """The rule of the paper: groups of like length meet, a sample over the budget trains alone, and
    nothing bounds how long one waits."""

    spread: bool = field(default=False, kw_only=True)
    max_wait: int = field(default=1 << 32, kw_only=True)

    @property
    def max_length(self) -> None:
        return None


@dataclass(frozen=True)
class Shape:
    """One row of Table 13 or 14."""

    updates: int
    samples: float
    """Per update, of all ranks together, as are tokens."""
    tokens: int
    padding: float
    """Percent."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One model size and data set: five rows."""

    model: str
    data: str
    distribution: str
    """The key of `evenstep.tools.simulate.DISTRIBUTIONS` that is fitted to the data set."""
    samples: int
    """In the whole data set."""
    max_tokens: int
    """ODB's budget."""
    batch_size: int
    """Standard's, from samples per update."""
    grouped_batch_size: int
    """HFG's, likewise."""
    rows: dict[str, Shape]

    @property
    def trained(self) -> int:
        return self.samples * 95 // 100


METHODS = ("Standard", "ODB", "GMT-oracle", "BMT-oracle", "HFG-oracle")


def _cell(
    model: str, data: str, max_tokens: int, sizes: tuple[int, int], *rows: tuple[float, ...]
) -> Cell:
    return Cell(
        model=model,
        data=data,
        distribution=data.lower(),
        samples={"UltraChat": 207_865, "LLaVA": 157_712, "ShareGPT4o": 57_284}[data],
        max_tokens=max_tokens,
        batch_size=sizes[0],
        grouped_batch_size=sizes[1],
        rows={
            name: Shape(int(updates), samples, int(tokens), padding)
            for name, (updates, samples, tokens, padding) in zip(METHODS, rows, strict=True)
        },
    )


# fmt: off
CELLS = (
    _cell("8B", "UltraChat", 12_288, (1, 2),
          (24_684, 8.00, 9_566, 0.0), (2_692, 73.36, 87_725, 1.3), (1_890, 104.48, 124_981, 0.0),
          (1_901, 103.90, 124_205, 0.5), (12_342, 16.00, 19_932, 12.8)),
    _cell("8B", "LLaVA", 12_288, (8, 16),
          (2_342, 63.97, 32_469, 32.5), (844, 177.59, 90_133, 2.1), (591, 253.51, 128_886, 0.0),
          (597, 250.97, 127_597, 0.6), (1_171, 127.95, 65_523, 15.8)),
    _cell("8B", "ShareGPT4o", 12_288, (1, 1),
          (6_803, 8.00, 11_949, 0.0), (1_030, 52.82, 78_891, 0.9), (4_762, 11.43, 17_236, 1.8),
          (6_057, 8.98, 13_619, 0.0), (6_803, 8.00, 12_284, 0.0)),
    _cell("2B", "UltraChat", 16_384, (1, 1),
          (24_684, 8.00, 9_566, 0.0), (2_003, 98.59, 117_886, 1.7), (3_983, 49.58, 59_272, 0.0),
          (1_901, 103.90, 124_224, 0.4), (24_684, 8.00, 9_808, 0.0)),
    _cell("2B", "LLaVA", 8_192, (4, 8),
          (4_683, 31.99, 16_238, 24.2), (1_259, 119.01, 60_399, 1.6), (2_496, 60.02, 30_505, 0.0),
          (2_502, 59.89, 30_448, 0.1), (2_342, 63.97, 32_977, 14.5)),
    _cell("2B", "ShareGPT4o", 4_096, (1, 1),
          (6_803, 8.00, 11_949, 0.0), (2_719, 20.01, 29_892, 0.4), (4_762, 11.43, 17_236, 1.8),
          (4_763, 11.43, 17_447, 2.1), (6_803, 8.00, 12_284, 0.0)),
)
# fmt: on

BUFFER = 1024
"""Samples, in all of ODB's rows."""


@dataclass(frozen=True)
class Bound:
    """One row of Table 4."""

    name: str
    distribution: str
    samples: int
    max_tokens: int
    buffer: int
    depth: int
    """D: samples that a rank may have fetched and not emitted."""
    percent: float


# Where no buffer or budget is printed, those of Appendix I are taken: buffer 1024, and 12288 for
# LLaVA. "ml8k" is a budget of 8192.
BOUNDS = (
    Bound("LLaVA 8B (D=4096)", "llava", 157_712, 12_288, 1024, 4096, 20.8),
    Bound("UltraChat 8B (ml8k pf256 buf256)", "ultrachat", 207_865, 8192, 256, 1024, 3.9),
    Bound("UltraChat 8B (ml8k pf1024 buf1024)", "ultrachat", 207_865, 8192, 1024, 4096, 15.8),
    Bound("UltraChat 8B (ml16k pf512 buf1024)", "ultrachat", 207_865, 16_384, 1024, 2048, 7.9),
    Bound("ShareGPT4o 8B (ml4k pf1024)", "sharegpt4o", 54_424, 4096, 1024, 4096, 60.2),
    Bound("MM-Mix 8B (ml8k pf256)", "mm-mix", 545_178, 8192, 1024, 1024, 1.5),
    Bound("MM-Mix 8B (extreme, ml4k pf2048)", "mm-mix", 545_178, 4096, 1024, 8192, 12.0),
)


@dataclass(frozen=True)
class Coverage:
    """One row of Table 5; its 2B and 8B rows are alike."""

    name: str
    distribution: str
    samples: int
    max_tokens: int
    buffer: int
    per_rank: int
    emitted: int
    repeated: int


COVERAGE = (
    Coverage("ShareGPT4o (ml4k pf1024)", "sharegpt4o", 57_284, 4096, 1024, 7_161, 57_288, 4),
    Coverage("UltraChat (ml8k buf256)", "ultrachat", 207_865, 8192, 256, 25_984, 207_872, 7),
)
