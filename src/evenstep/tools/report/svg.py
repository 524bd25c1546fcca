"""Charts as SVG text, for a page. Colours are classes of the page's style sheet.

Each chart is a function of numbers alone and refers to nothing outside itself. The ``<title>`` of a
mark explains it; browsers show it under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.tools.report.bins import Bins

_WIDTH = 760
_LEFT, _RIGHT = 56, 20  # margins


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar, from 0 to `value`, with a whisker from `low` to `high`."""

    name: str
    value: float
    low: float
    high: float
    label: str
    """Text to the right of the bar."""
    style: str = ""
    """Class of the bar in the style sheet."""


def lengths_chart(
    lengths: npt.NDArray[np.int64], marks: Sequence[tuple[str, float]], *, bins: int = 48
) -> str:
    """Two panels over one logarithmic axis of lengths: a histogram, and the cumulative share.

    Args:
        lengths: [samples] tokens.
        marks: (name, tokens) of vertical lines.
    """
    counted = Bins.count(lengths, bins)
    low = min([float(counted.edges[0]), *(tokens for _, tokens in marks)])
    high = max([float(counted.edges[-1]), *(tokens for _, tokens in marks)]) * 1.05
    span = math.log(high / low)

    def x(tokens: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(tokens / low) / span

    top, middle, bottom = (26, 186), (218, 338), 338
    most = float(counted.shares.max())
    parts = [_grid_y(*top, most), _grid_y(*middle, 1.0), _grid_x(x, low, high, top[0], bottom)]
    for index, share in enumerate(counted.shares):
        begin, end = float(counted.edges[index]), float(counted.edges[index + 1])
        height = (top[1] - top[0]) * float(share) / most
        what = f"{begin:,.0f} to {end - 1:,.0f} tokens: {share:.2%} of samples"
        parts.append(
            f'<rect class="bar" x="{x(begin):.1f}" y="{top[1] - height:.1f}" '
            f'width="{max(x(end) - x(begin) - 1, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{what}</title></rect>"
        )
    parts.append(_cumulative(lengths, x, middle))
    for row, (name, tokens) in enumerate(marks):
        at = x(tokens)
        side = "end" if at > _WIDTH / 2 else "start"
        shift = -5 if side == "end" else 5
        parts.append(
            f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top[0] - 14}" y2="{bottom}"/>'
            f'<text class="mark" x="{at + shift:.1f}" y="{top[0] - 6 + 13 * row}" '
            f'text-anchor="{side}">{escape(name)} = {tokens:,.0f}</text>'
        )
    middle_x = (_LEFT + _WIDTH - _RIGHT) / 2
    for y, words in ((top[0], "share of samples"), (middle[0], "samples up to this length")):
        if y != top[0]:
            parts.append(f'<text x="{_LEFT}" y="{y - 8}">{words}</text>')
        else:
            parts.append(f'<text x="{_LEFT - 48}" y="{y - 12}">{words}</text>')
    parts.append(
        f'<text x="{middle_x:.0f}" y="{bottom + 38}" text-anchor="middle">tokens of a sample</text>'
    )
    return _svg(parts, bottom + 46, "Histogram and cumulative share of sample lengths")


def bar_chart(bars: Sequence[Bar], *, title: str) -> str:
    """Horizontal bars on an axis from 0 to 100 %.

    Raises:
        ConfigurationError: there are no bars.
    """
    if not bars:
        raise ConfigurationError("a bar chart needs bars")
    left, right, row = 172, 178, 30
    height = 10 + row * len(bars)

    def x(value: float) -> float:
        return left + (_WIDTH - left - right) * value

    parts = []
    for tick in range(0, 101, 20):
        at = x(tick / 100)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height}"/>'
            f'<text x="{at:.1f}" y="{height + 18}" text-anchor="middle">{tick} %</text>'
        )
    for index, bar in enumerate(bars):
        y = 10 + row * index
        centre = y + 9
        what = f"{bar.name}: {bar.value:.1%}, {bar.low:.1%} to {bar.high:.1%}"
        parts.append(
            f'<text class="name {bar.style}" x="{left - 10}" y="{centre + 4}" text-anchor="end">'
            f"{escape(bar.name)}</text>"
            f'<rect class="bar {bar.style}" x="{left}" y="{y}" height="18" rx="2" '
            f'width="{max(x(bar.value) - left, 1):.1f}"><title>{escape(what)}</title></rect>'
        )
        if bar.high > bar.low:
            begin, end = x(bar.low), x(bar.high)
            parts.append(
                f'<path class="whisker" d="M{begin:.1f} {centre}H{end:.1f}'
                f'M{begin:.1f} {centre - 5}v10M{end:.1f} {centre - 5}v10"/>'
            )
        parts.append(
            f'<text class="value" x="{x(max(bar.value, bar.high)) + 10:.1f}" y="{centre + 4}">'
            f"{escape(bar.label)}</text>"
        )
    return _svg(parts, height + 26, title)


def _cumulative(lengths: npt.NDArray[np.int64], x: object, panel: tuple[int, int]) -> str:
    levels = np.linspace(0, 1, 201)
    tokens = np.quantile(lengths, levels, method="inverted_cdf")
    top, bottom = panel
    points = " ".join(
        f"{x(float(t)):.1f},{bottom - (bottom - top) * level:.1f}"  # type: ignore[operator]
        for t, level in zip(tokens, levels)
    )
    return f'<polyline class="line" points="{points}"/>'


def _grid_y(top: int, bottom: int, most: float) -> str:
    """Horizontal lines at round shares from 0 to `most`."""
    step = _round_step(most)
    lines = []
    for k in range(int(most / step + 1e-9) + 1):
        y = bottom - (bottom - top) * k * step / most
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * k * step:g} %</text>'
        )
    return "".join(lines)


def _round_step(most: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are two to five steps up to `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(s * power for s in (0.2, 0.5, 1.0, 2.0) if most / (s * power) <= 5)


def _grid_x(x: object, low: float, high: float, top: int, bottom: int) -> str:
    """Vertical lines at 1, 2 and 5 times powers of ten, or powers of ten alone if crowded."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]
    if len(ticks) > 12:
        ticks = [tick for tick in ticks if f"{tick:.0e}"[0] == "1"]
    lines = []
    for tick in ticks:
        at = x(tick)  # type: ignore[operator]
        lines.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:,.0f}</text>'
        )
    return "".join(lines)


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
