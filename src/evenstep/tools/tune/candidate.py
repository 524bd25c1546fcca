"""One value of `max_tokens`, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.tools.tune.measurement import Measurement


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A value that was tried. It is eligible, and has a measurement, if its outcome is "ok"."""

    max_tokens: int
    outcome: str
    """"ok", "out of memory", "too small", "failed", "hung" or "skipped"."""
    detail: str = ""
    """The reason, in a line."""
    output: str = ""
    """The end of its output, if it was a process and is not ok."""
    measurement: Measurement | None = None

    @property
    def ok(self) -> bool:
        return self.measurement is not None

    @property
    def measured(self) -> Measurement:
        """The measurement of a candidate that is ok."""
        assert self.measurement is not None
        return self.measurement

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; the measurement's fields are among the others, None without a measurement."""
        found = dict.fromkeys(f.name for f in fields(Measurement))
        return {
            "max_tokens": self.max_tokens,
            "outcome": self.outcome,
            "detail": self.detail,
            **(asdict(self.measurement) if self.measurement is not None else found),
        }


class NothingSurvivedError(EvenstepError):
    """No value of the grid could be measured. `candidates` has the outcome of each."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        each = "; ".join(f"{c.max_tokens:,}: {c.outcome}, {c.detail}" for c in candidates)
        super().__init__(f"no value of max_tokens could be measured ({each})")
        self.candidates = tuple(candidates)
