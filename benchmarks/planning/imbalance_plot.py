"""A picture of imbalance against the number of ranks, one line for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.tools.report.picture import new_figure

# Colour-blind safe; the others are grey.
_SHADES = {"odb": "#d55e00", "even": "#0072b2", "even-packed": "#009e73"}
_GREY = "#8c8c8c"


def plot(lines: Mapping[str, Mapping[int, float]], path: Path, *, title: str) -> None:
    """Writes a PNG file of waiting over computing, which is imbalance - 1, on logarithmic axes.

    Args:
        lines: policy -> number of ranks -> imbalance.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    figure = new_figure(9.5, 6.0)
    axis = figure.subplots()
    for policy, points in sorted(lines.items(), key=lambda line: line[0] in _SHADES):
        ranks = sorted(points)
        waiting = [points[rank] - 1 for rank in ranks]
        width = 2.6 if policy in _SHADES else 1.2
        shade = _SHADES.get(policy, _GREY)
        axis.plot(ranks, waiting, color=shade, linewidth=width, marker="o", markersize=width + 2)
    sizes = sorted({rank for points in lines.values() for rank in points})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("ranks")
    axis.set_ylabel("time waiting over time computing (imbalance - 1)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.set_title(title, loc="left", fontweight="bold")
    _label(axis, {policy: points[max(points)] - 1 for policy, points in lines.items()}, sizes[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _label(axis: Any, ends: Mapping[str, float], right: int) -> None:
    """Names at the ends of lines, moved apart where they would touch."""
    low, high = np.log10(axis.get_ylim())
    gap = (high - low) / 26
    ordered = sorted(ends.items(), key=lambda end: end[1])
    exact = np.log10([waiting for _, waiting in ordered])
    steps = gap * np.arange(len(exact))
    # Apart by pushing names up, and by pushing them down; half way between, they are too.
    up = np.maximum.accumulate(exact - steps) + steps
    down = np.minimum.accumulate((exact - steps)[::-1])[::-1] + steps
    for (policy, waiting), place in zip(ordered, (up + down) / 2):
        axis.annotate(
            policy,
            (right, waiting),
            xytext=(right * 1.15, 10**place),
            textcoords="data",
            annotation_clip=False,
            va="center",
            color=_SHADES.get(policy, _GREY),
            fontweight="bold" if policy in _SHADES else "normal",
        )
