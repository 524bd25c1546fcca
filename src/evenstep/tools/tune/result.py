"""The result of a search, for people and for programs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from evenstep.tools.report.table import text_table
from evenstep.tools.tune.candidate import Candidate
from evenstep.tools.tune.measurement import MeasuredSteps
from evenstep.tools.tune.ranking import choose, ranking, undecided

_LOWER = 0.05  # smaller differences of composition are not worth a note


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The candidates of a search, of which at least one is eligible."""

    candidates: tuple[Candidate, ...]
    """One for each value of the grid, upward."""
    band: float
    measured_steps: MeasuredSteps

    @property
    def chosen(self) -> Candidate:
        chosen = choose(self.candidates, self.band)
        assert chosen is not None
        return chosen

    @property
    def max_tokens(self) -> int:
        """The value to train with."""
        return self.chosen.max_tokens

    @property
    def ranking(self) -> list[int]:
        """All eligible values, best first."""
        return [candidate.max_tokens for candidate in ranking(self.candidates, self.band)]

    @property
    def fall_back(self) -> int | None:
        """The value to use if the chosen one runs out of memory later, as it may with the longest
        samples: the rule's choice among the smaller values."""
        smaller = [c for c in self.candidates if c.max_tokens < self.max_tokens]
        best = choose(smaller, self.band)
        return None if best is None else best.max_tokens

    @property
    def notes(self) -> list[str]:
        """Remarks on how far to trust the choice."""
        notes = []
        doubtful, longer = undecided(self.candidates, self.chosen, self.band)
        eligible = [c for c in self.candidates if c.ok]
        if len(eligible) > 1 and longer is None:
            notes.append("too few steps to estimate the error of the throughputs: measure longer")
        elif doubtful:
            names = " and ".join(f"{c.max_tokens:,}" for c in doubtful)
            notes.append(
                f"noise may have decided against {names}; measure about "
                f"{math.ceil(longer or 1):,} times as long to be sure"
            )
        own = self.chosen.measured.composition
        if mixed := [c for c in eligible if c.measured.composition > own + _LOWER]:
            others = " and ".join(f"{c.max_tokens:,} ({c.measured.composition:.2f})" for c in mixed)
            notes.append(
                f"chosen for its speed, {self.max_tokens:,} has a lower composition ({own:.2f}; 1 "
                f"is random batches) than {others}, which may cost quality: compare held-out losses"
            )
        if eligible[-1] is self.chosen and self.candidates[-1] is self.chosen and len(eligible) > 1:
            notes.append(
                f"{self.max_tokens:,} is the largest value of the grid: try larger ones too"
            )
        return notes

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; fractions are fractions."""
        return {
            "max_tokens": self.max_tokens,
            "ranking": self.ranking,
            "fall_back": self.fall_back,
            "band": self.band,
            "window": asdict(self.measured_steps),
            "notes": self.notes,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
        }

    def table(self) -> str:
        """The candidates, the choice and the notes, for a terminal."""
        lines = [candidates_table(self.candidates, self.max_tokens), ""]
        lines.append(f"max_tokens = {self.max_tokens}")
        lines.append("ranking: " + ", ".join(f"{value:,}" for value in self.ranking))
        if self.fall_back is not None:
            lines.append(f"if it runs out of memory in a whole epoch: {self.fall_back:,}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def candidates_table(candidates: tuple[Candidate, ...], chosen: int | None = None) -> str:
    """One row for each candidate, the chosen one with an arrow."""
    header = ["max_tokens", "samples/s", "± s.e.", "tokens/s", "padding", "composition"]
    header += ["s/step", "steps", ""]
    return text_table(header, [_row(c, c.max_tokens == chosen) for c in candidates])


def _row(candidate: Candidate, chosen: bool) -> list[str]:
    value = f"{'→ ' if chosen else '  '}{candidate.max_tokens:,}"
    m = candidate.measurement
    if m is None:
        return [value, *["-"] * 7, candidate.outcome]
    error = "-" if m.relative_error is None else f"{m.relative_error:.1%}"
    return [
        value,
        f"{m.throughput:,.4g}" if m.throughput < 1000 else f"{m.throughput:,.0f}",
        error,
        f"{m.tokens_per_second:,.0f}",
        f"{m.padding:.1%}",
        f"{m.composition:.2f}",
        f"{m.step_seconds:.3g}",
        f"{m.steps:,}",
        candidate.outcome,
    ]
