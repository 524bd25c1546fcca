"""The selection rule: a pure function of the measurements.

1. Eligible are candidates whose steps were all measured.
2. Near-fastest are those within `band` of the highest emitted-sample throughput.
3. The smallest `max_tokens` among them is chosen; among equal ones the one whose step times vary
   less, then the faster one.

The band is 2 % because in ODB's Table 2, 20-minute runs on three data sets, values on the plateau
are within 1.8 % of the fastest, and those on the slope below it lose 2.8 % and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evenstep.errors import ConfigurationError
from evenstep.tools.tune.candidate import Candidate

BAND = 0.02


def check_band(band: float) -> None:
    """Checks a band.

    Raises:
        ConfigurationError: `band` is not a fraction.
    """
    if not 0 <= band < 1:
        raise ConfigurationError(f"band={band} must be a fraction from 0 to below 1")


def near_fastest(candidates: Iterable[Candidate], band: float = BAND) -> list[Candidate]:
    """The eligible candidates within `band` of the fastest, best first."""
    check_band(band)
    eligible = [c for c in candidates if c.ok]
    fastest = max((c.measured.throughput for c in eligible), default=0.0)
    near = [c for c in eligible if c.measured.throughput >= (1 - band) * fastest]
    return sorted(
        near,
        key=lambda c: (c.max_tokens, c.measured.step_variation, -c.measured.throughput),
    )


def choose(candidates: Iterable[Candidate], band: float = BAND) -> Candidate | None:
    """The candidate to train with; None if none is eligible."""
    return next(iter(near_fastest(candidates, band)), None)


def ranking(candidates: Iterable[Candidate], band: float = BAND) -> list[Candidate]:
    """All eligible candidates, best first: each is the rule's choice among those not ranked yet."""
    left = [c for c in candidates if c.ok]
    ranked: list[Candidate] = []
    while (best := choose(left, band)) is not None:
        ranked.append(best)
        left = [c for c in left if c is not best]
    return ranked


def undecided(
    candidates: Sequence[Candidate], chosen: Candidate, band: float = BAND
) -> tuple[list[Candidate], float | None]:
    """Finds the candidates against which noise may have decided, at two standard errors: smaller
    ones that may be near-fastest, and larger ones that may be so fast that the chosen one is not.

    Returns:
        These candidates, and how many times as long to measure to decide; None if a candidate has
        too few steps to estimate it.
    """
    eligible = [c for c in candidates if c.ok]
    fastest = max(eligible, key=lambda c: c.measured.throughput)
    doubtful, longer = [], 1.0
    for candidate in eligible:
        if candidate is chosen:
            continue
        smaller = candidate.max_tokens < chosen.max_tokens
        slower, faster = (candidate, fastest) if smaller else (chosen, candidate)
        errors = slower.measured.relative_error, faster.measured.relative_error
        if errors[0] is None or errors[1] is None:
            return [c for c in eligible if c is not chosen], None
        ratio = slower.measured.throughput / faster.measured.throughput
        gap = abs(ratio - (1 - band))
        noise = 2 * ratio * math.hypot(errors[0], errors[1])
        if gap < noise:
            doubtful.append(candidate)
            # A candidate at the very edge can never be decided, and need not be.
            longer = max(longer, (noise / max(gap, band / 4, 1e-3)) ** 2)
    return doubtful, longer
