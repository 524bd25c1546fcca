"""Drawings of a loading plan as SVG text: cost of buckets before and after, and flows of tokens.

Colours are classes of the page's style sheet; the ``<title>`` of a mark explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

Loads = npt.NDArray[np.float64]

_WIDTH = 760
_LEFT, _RIGHT = 56, 20
_COLUMNS = 64
"""Most columns. With more buckets, each column shows the costliest of several."""


def loads_chart(before: Loads, after: Loads) -> str:
    """Two panels on one axis: cost of each bucket as samples arrived, and as planned, stacked by
    micro-batch; the dashed line is the mean.

    Args:
        before, after: [buckets, micro_batches].
    """
    tallest = max(float(before.sum(axis=1).max()), float(after.sum(axis=1).max())) or 1.0
    parts, height, gap = [], 130, 44
    for panel, (name, loads) in enumerate((("as they arrive", before), ("as planned", after))):
        top = 24 + panel * (height + gap)
        parts.append(f'<text x="{_LEFT}" y="{top - 8}">{name}</text>')
        parts += _columns(_fewer(loads), top, height, tallest, "baseline" if panel == 0 else "")
        mean = top + height * (1 - float(loads.sum()) / len(loads) / tallest)
        parts.append(
            f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{mean:.1f}" '
            f'y2="{mean:.1f}"><title>mean of all buckets</title></line>'
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{top + height}" '
            f'y2="{top + height}"/>'
        )
    bottom = 24 + 2 * height + gap
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{bottom + 18}" text-anchor="middle">'
        "buckets</text>"
    )
    return _svg(parts, bottom + 26, "Cost of each bucket before and after balancing")


def _fewer(loads: Loads) -> list[tuple[str, Loads]]:
    """The costliest bucket of each of at most 64 runs of buckets, with its name."""
    shown = []
    for run in np.array_split(np.arange(len(loads)), min(len(loads), _COLUMNS)):
        costliest = int(run[loads[run].sum(axis=1).argmax()])
        name = f"bucket {costliest}"
        if len(run) > 1:
            name += f", the costliest of {run[0]} to {run[-1]}"
        shown.append((name, loads[costliest]))
    return shown


def _columns(
    shown: Sequence[tuple[str, Loads]], top: int, height: int, tallest: float, style: str
) -> list[str]:
    width = (_WIDTH - _LEFT - _RIGHT) / len(shown)
    parts = []
    for number, (name, loads) in enumerate(shown):
        at = float(top + height)
        for k, load in enumerate(loads.tolist()):
            tall = height * load / tallest
            at -= tall
            parts.append(
                f'<rect class="bar {style}" x="{_LEFT + number * width:.1f}" y="{at:.2f}" '
                f'width="{max(width - 1.5, 0.5):.1f}" height="{max(tall - 0.6, 0.2):.2f}">'
                f"<title>{escape(name)}, micro-batch {k}: {load:.4g}</title></rect>"
            )
    return parts


def flow_drawing(
    sources: Sequence[str], buckets: Sequence[str], tokens: npt.NDArray[np.int64]
) -> str:
    """Sources on the left, buckets on the right, and bands between them as wide as their tokens.

    Args:
        sources, buckets: names, for example of the largest ones and "others".
        tokens: [sources, buckets].
    """
    rows = max(len(sources), len(buckets))
    height, left, right = 26 * rows + 20, 150, _WIDTH - 150
    total = max(int(tokens.sum()), 1)
    thick = (height - 20 - 6 * rows) / total  # of one token
    starts = _stack(tokens.sum(axis=1), thick, height)
    ends = _stack(tokens.sum(axis=0), thick, height)
    filled_left, filled_right = list(starts), list(ends)
    parts = []
    for i, j in np.argwhere(tokens > 0).tolist():
        wide = float(tokens[i, j]) * thick
        y0, y1 = filled_left[i] + wide / 2, filled_right[j] + wide / 2
        filled_left[i] += wide
        filled_right[j] += wide
        parts.append(
            f'<path class="flow" stroke-width="{max(wide, 0.3):.2f}" d="M{left} {y0:.1f}'
            f'C{left + 150} {y0:.1f} {right - 150} {y1:.1f} {right} {y1:.1f}">'
            f"<title>{escape(sources[i])} to {escape(buckets[j])}: {tokens[i, j]:,} tokens</title>"
            "</path>"
        )
    for names, edges, sums, x, anchor in (
        (sources, starts, tokens.sum(axis=1), left - 8, "end"),
        (buckets, ends, tokens.sum(axis=0), right + 8, "start"),
    ):
        for name, y, held in zip(names, edges, sums.tolist()):
            parts.append(
                f'<text class="name" x="{x}" y="{y + held * thick / 2 + 4:.1f}" '
                f'text-anchor="{anchor}">{escape(_short(name))}</text>'
            )
    return _svg(parts, height, "Tokens from sources to buckets")


def _stack(tokens: npt.NDArray[np.int64], thick: float, height: int) -> list[float]:
    """Upper edges of pieces of these sizes, spread over the height."""
    room = height - 20 - float(tokens.sum()) * thick
    gap = room / max(len(tokens), 1)
    before = np.append(0, tokens.cumsum())[:-1] * thick
    edges: list[float] = (10 + gap / 2 + before + np.arange(len(tokens)) * gap).tolist()
    return edges


def _short(name: str) -> str:
    return name if len(name) <= 20 else f"{name[:19]}…"


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
