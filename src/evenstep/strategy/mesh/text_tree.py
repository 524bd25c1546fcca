"""A mesh as lines of text, in the manner of ``tree``."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.strategy.mesh.axes import AXES


def tree_lines(ranks: Int64Array, fetches: BoolArray, most: int | None = None) -> list[str]:
    """
    Args:
        ranks: [PP, DP, CP, TP] global rank of each client.
        fetches: the same shape, whether it fetches data.
        most: nodes drawn under each node; None for all.
    """
    axes = [axis for axis, size in zip(AXES, ranks.shape) if size > 1] or ["TP"]
    lines = [f"{ranks.size:,} client{'s' if ranks.size > 1 else ''}"]
    _draw(ranks, fetches, axes, "", most, lines)
    return lines


def _draw(
    ranks: Int64Array,
    fetches: BoolArray,
    axes: list[str],
    indent: str,
    most: int | None,
    lines: list[str],
) -> None:
    axis, where = axes[0], AXES.index(axes[0])
    size = ranks.shape[where]
    drawn = size if most is None else min(size, most)
    for node in range(drawn):
        last = node == size - 1
        below = ranks.take([node], axis=where), fetches.take([node], axis=where)
        label = f"{axis}={node}"
        if len(axes) == 1:
            label += f"  rank {below[0].item()}"
            label += "" if below[1].item() else ", fetches nothing"
        lines.append(f"{indent}{'└─' if last else '├─'} {label}")
        if len(axes) > 1:
            _draw(*below, axes[1:], indent + ("   " if last else "│  "), most, lines)
    if drawn < size:
        rest = ranks.take(range(drawn, size), axis=where)
        lines.append(f"{indent}└─ {size - drawn:,} more, ranks {ranges(rest)}")


def ranges(ranks: Int64Array, most: int = 8) -> str:
    """Numbers as text, sorted: ``0-7, 12``. Beyond `most` ranges, only how many there are."""
    values = np.sort(ranks, axis=None)
    parts = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    texts = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts[:most]]
    if len(parts) > most:
        texts.append(f"and {len(parts) - most:,} more ranges")
    return ", ".join(texts)
