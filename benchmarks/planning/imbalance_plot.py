"""A picture of imbalance against the number of ranks, one line for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evenstep.tools.report.picture import new_figure

# Colour-blind safe; the others are grey.
_SHADES = {"odb": "#d55e00", "even": "#0072b2", "even-packed": "#009e73"}
_GREY = "#8c8c8c"
_MARKS = "osv^D<>P*X"


def plot(lines: Mapping[str, Mapping[int, float]], path: Path, *, title: str) -> None:
    """Writes a PNG file of waiting over computing, which is imbalance - 1, on logarithmic axes.

    Args:
        lines: policy -> number of ranks -> imbalance.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    figure = new_figure(9.5, 6.0)
    axis = figure.subplots()
    ordered = sorted(lines.items(), key=lambda line: line[0] in _SHADES)
    for number, (policy, points) in enumerate(ordered):
        ranks = sorted(points)
        waiting = [points[rank] - 1 for rank in ranks]
        width = 2.6 if policy in _SHADES else 1.2
        shade = _SHADES.get(policy, _GREY)
        axis.plot(
            *(ranks, waiting),
            color=shade,
            label=policy,
            linewidth=width,
            marker=_MARKS[number % len(_MARKS)],
            markersize=width + 3,
        )
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
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
