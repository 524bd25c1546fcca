"""The selection rule: a pure function of what was measured.

1. Eligible are candidates that were measured to the end of their window.
2. Near-fastest are those within `band` of the highest emitted-sample throughput.
3. Of these the smallest `max_tokens` is chosen; of equal ones the one whose step times vary less,
   then the faster one.

Why 2 %: in ODB's Table 2, 20-minute windows on three data sets, values on the plateau
are within 1.8 % of the fastest and those on the slope below it lose 2.8 % and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evenstep.errors import ConfigurationError
from evenstep.tools.tune.candidate import Candidate
from evenstep.tools.tune.measurement import Measurement

__all__ = ["BAND", "check_band", "choose", "near_fastest", "ranking", "undecided"]

BAND = 0.02


def check_band(band: float) -> None:
    """
    Raises:
        ConfigurationError: it is no fraction.
    """
    if not 0 <= band < 1:
        raise ConfigurationError(f"band={band} must be a fraction from 0 to below 1")


def near_fastest(candidates: Iterable[Candidate], band: float = BAND) -> list[Candidate]:
    """The eligible ones within `band` of the fastest, best first."""
    check_band(band)
    eligible = [c for c in candidates if c.measurement is not None]
    fastest = max((_measured(c).throughput for c in eligible), default=0.0)
    near = [c for c in eligible if _measured(c).throughput >= (1 - band) * fastest]
    return sorted(near, key=_order)


def choose(candidates: Iterable[Candidate], band: float = BAND) -> Candidate | None:
    """The one to train with; None where none is eligible."""
    return next(iter(near_fastest(candidates, band)), None)


def ranking(candidates: Iterable[Candidate], band: float = BAND) -> list[Candidate]:
    """All eligible ones, best first: each is what the rule chooses among those not ranked yet."""
    left = [c for c in candidates if c.ok]
    ranked: list[Candidate] = []
    while (best := choose(left, band)) is not None:
        ranked.append(best)
        left = [c for c in left if c is not best]
    return ranked


def undecided(
    candidates: Sequence[Candidate], chosen: Candidate, band: float = BAND
) -> tuple[list[Candidate], float | None]:
    """Whether noise could have decided, at two standard errors: smaller candidates that may be
    near-fastest after all, and larger ones that may be so fast that the chosen one is not.

    Returns:
        Those, and by how much longer windows would have to be to tell; None where there is no
        saying, since a candidate has too few steps.
    """
    eligible = [c for c in candidates if c.ok]
    fastest = max(eligible, key=lambda c: _measured(c).throughput)
    open_, longer = [], 1.0
    for candidate in eligible:
        if candidate is chosen:
            continue
        pair = (chosen, candidate)
        if candidate.max_tokens < chosen.max_tokens:
            pair = (candidate, fastest)
        slower, faster = map(_measured, pair)
        if slower.relative_error is None or faster.relative_error is None:
            return [c for c in eligible if c is not chosen], None
        ratio = slower.throughput / faster.throughput
        gap = abs(ratio - (1 - band))
        noise = 2 * ratio * math.hypot(slower.relative_error, faster.relative_error)
        if gap < noise:
            open_.append(candidate)
            # What lies at the very edge can never be told, and need not be.
            longer = max(longer, (noise / max(gap, band / 4, 1e-3)) ** 2)
    return open_, longer


def _order(candidate: Candidate) -> tuple[int, float, float]:
    measured = _measured(candidate)
    return candidate.max_tokens, measured.step_variation, -measured.throughput


def _measured(candidate: Candidate) -> Measurement:
    assert candidate.measurement is not None
    return candidate.measurement
