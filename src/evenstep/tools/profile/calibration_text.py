"""A calibration as text for people."""

from __future__ import annotations

from evenstep.tools.profile.calibration import Calibration
from evenstep.tools.profile.layer_measure import LengthMeasurement
from evenstep.tools.profile.timer import Timing
from evenstep.tools.report.table import text_table

_POOR_FIT = 0.15
_WIDE_SPREAD = 0.2


def calibration_text(calibration: Calibration) -> str:
    """A table of the measurements, the coefficients and the notes."""
    shape, cost = calibration.shape, calibration.cost
    layers = "1 layer" if shape.layers == 1 else f"{shape.layers} equal layers"
    header = ("length", "attention ms", "± ms", "rest ms", "± ms", "both ms", "fitted ms", "error")
    title = (
        f"one layer, forward and backward, on {calibration.device}, {calibration.dtype}, "
        f"PyTorch {calibration.torch}"
    )
    table = text_table(
        header, [_row(calibration, m) for m in calibration.measurements], title=title
    )
    coefficients = (
        f"{layers}: {cost.per_group:.3g} s per group, {cost.per_token:.3g} s per token, "
        f"{cost.per_pair:.3g} s per squared token; at least "
        f"{shape.layers * sum(calibration.fits.floors):.3g} s"
    )
    notes = [f"note: {note}" for note in calibration_notes(calibration)]
    return "\n".join([table, "", coefficients, _crossing(calibration), *notes])


def calibration_notes(calibration: Calibration) -> list[str]:
    """Remarks on how far to trust the coefficients."""
    notes = [
        f"{m.length:,}: {m.outcome} ({m.detail})"
        for m in calibration.measurements
        if m.outcome != "ok"
    ]
    linear = calibration.linear
    if linear is None:
        notes.append("attention was too fast to be measured: measure longer documents")
    elif linear > calibration.longest:
        notes.append(
            f"{linear:,.0f} tokens are beyond the {calibration.longest:,} measured, and less exact "
            "the further beyond"
        )
    timed = [(m, m.attention, m.rest) for m in calibration.measurements if m.attention and m.rest]
    noisy = [m.length for m, *parts in timed if _spread(*parts) > _WIDE_SPREAD]
    if noisy:
        notes.append(
            f"times at {_listed(noisy)} vary by more than {_WIDE_SPREAD:.0%}: is something else "
            "running?"
        )
    poor = [m.length for m, *_ in timed if abs(calibration.error(m) or 0) > _POOR_FIT]
    if poor:
        notes.append(f"the fit is off by more than {_POOR_FIT:.0%} at {_listed(poor)}")
    return notes


def _crossing(calibration: Calibration) -> str:
    operations = calibration.shape.operations
    by_operations = f"{operations.per_token / operations.per_pair:,.0f}"
    linear = calibration.linear
    if linear is None:
        return f"by operations, attention costs as much as the rest at {by_operations} tokens"
    return (
        f"attention costs as much as the rest at {linear:,.0f} tokens: "
        f"DocumentCost(linear={round(linear)}); by operations, at {by_operations}"
    )


def _spread(attention: Timing, rest: Timing) -> float:
    """Sum of both quartile ranges, as a fraction of the sum of both times."""
    width = attention.high - attention.low + rest.high - rest.low
    return width / (attention.seconds + rest.seconds)


def _row(calibration: Calibration, measured: LengthMeasurement) -> list[str]:
    length, fitted = f"{measured.length:,}", _ms(calibration.fitted(measured.length))
    attention, rest, error = measured.attention, measured.rest, calibration.error(measured)
    if attention is None or rest is None or error is None:
        return [length, *["-"] * 5, fitted, measured.outcome]
    return [
        length,
        _ms(attention.seconds),
        _ms((attention.high - attention.low) / 2),
        _ms(rest.seconds),
        _ms((rest.high - rest.low) / 2),
        _ms(attention.seconds + rest.seconds),
        fitted,
        f"{error:+.1%}",
    ]


def _ms(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _listed(lengths: list[int]) -> str:
    return " and ".join(
        filter(None, [", ".join(f"{n:,}" for n in lengths[:-1]), f"{lengths[-1]:,}"])
    )
