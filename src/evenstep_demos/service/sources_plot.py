"""A picture of a mixture: the samples drawn from each source beside its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evenstep.tools.report.picture import new_figure, save_figure
from evenstep_demos.service.figures import SourceDraws

_DRAWN, _EXPECTED, _FIRST = "#56b4e9", "#d55e00", "#999999"


def plot_sources(draws: SourceDraws, path: Path, *, title: str) -> None:
    """Writes a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(11, 6.2)
    above, below = figure.subplots(2, 1, sharex=True)
    order = np.argsort(-draws.expected, kind="stable")
    positions = np.arange(len(order))
    above.bar(positions, draws.drawn[order], width=0.9, color=_DRAWN, linewidth=0)
    above.step(positions, draws.expected[order], where="mid", color=_EXPECTED, linewidth=1.6)
    above.set_ylabel("samples drawn")
    below.step(positions, draws.first[order], where="mid", color=_FIRST, linewidth=1.4)
    below.step(positions, draws.last[order], where="mid", color=_EXPECTED, linewidth=1.4)
    below.set_ylabel("weight")
    below.set_xlabel(f"{len(order):,} sources, by what their weights ask for")
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
        axis.set_ylim(bottom=0)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_DRAWN, label="drawn"),
        Line2D([], [], color=_EXPECTED, label="asked for by weights; weights of the last step"),
        Line2D([], [], color=_FIRST, label="weights of the first step"),
    ]
    save_figure(figure, path, handles=handles, title=title)
