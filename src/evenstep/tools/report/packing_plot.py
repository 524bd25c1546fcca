"""A picture of packing: the work of every micro-batch in each iteration.

The micro-batches of an iteration stand side by side, from the heaviest to the lightest. All of them
take as long as the heaviest wherever they wait for each other, so what is above the others is grey:
time that was paid for and not used. Even micro-batches are a flat block of colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.tools.report.picture import new_figure, save_figure

__all__ = ["PackingPanel", "plot_packing"]

_WORK = "#0072b2"
_IDLE = "#d0d0d0"
_MOST = 60
"""Iterations drawn: so many can be told apart."""
_WIDTH = 0.86  # of an iteration; the rest is a gap


@dataclass(frozen=True, kw_only=True)
class PackingPanel:
    """One packer."""

    title: str
    """What it is and its headline figures."""
    works: npt.NDArray[np.float64]
    """[iterations, micro-batches] work, all panels in the same unit."""


def plot_packing(
    panels: Sequence[PackingPanel], path: Path, *, title: str = "", most: int = _MOST
) -> None:
    """Draws one panel per packer, all on the same axes, and writes a PNG file.

    Args:
        panels: at least one, each with at least one iteration and micro-batch.
        path: the file; its folder is made if need be.
        title: of the picture.
        most: iterations that are drawn at most; of more, those in the middle are, and the axis
            says which.

    Raises:
        ConfigurationError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    if not panels or any(panel.works.ndim != 2 or not panel.works.size for panel in panels):
        raise ConfigurationError("a picture of packing needs [iterations, micro-batches] of work")
    iterations = max(len(panel.works) for panel in panels)
    shown = min(iterations, max(most, 1))
    begin = (iterations - shown) // 2
    figure = new_figure(12, 0.9 + 2.4 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels):
        _draw(axis, panel.works[begin : begin + shown], begin)
        axis.set_title(panel.title, loc="left", fontsize=11)
        axis.set_ylabel("work (1 = mean)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
        axis.set_ylim(bottom=0)
    part = f" (the middle {shown:,} of {iterations:,})" if shown < iterations else ""
    axes[-1].set_xlabel(f"iteration{part}")
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_WORK, label="work of a micro-batch"),
        Patch(color=_IDLE, label="up to the heaviest of the iteration"),
    ]
    save_figure(figure, path, handles=handles, title=title)


def _draw(axis: object, works: npt.NDArray[np.float64], begin: int) -> None:
    iterations, count = works.shape
    falling = -np.sort(-works, axis=1)
    inside = np.linspace(-_WIDTH / 2, _WIDTH / 2, count + 1)
    edges = (np.arange(begin, begin + iterations)[:, None] + inside).ravel()
    heaviest = np.repeat(falling[:, :1], count, axis=1)
    for heights, colour in ((heaviest, _IDLE), (falling, _WORK)):
        # One shape, zero high in the gaps: so many bars would take long to draw.
        with_gaps = np.pad(heights, ((0, 0), (0, 1))).ravel()[:-1]
        axis.stairs(with_gaps, edges, fill=True, color=colour, linewidth=0)  # type: ignore[attr-defined]
