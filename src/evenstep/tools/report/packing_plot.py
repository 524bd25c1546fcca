"""A picture of packing: the cost of every micro-batch in each step.

The micro-batches of a step stand side by side, from the costliest to the cheapest. Where they wait
for each other, all take as long as the costliest, so the space above the others is grey: time that
was paid for and not used. Even micro-batches are a flat block of colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.tools.report.picture import new_figure, save_figure

_COST = "#0072b2"
_IDLE = "#d0d0d0"
_MOST = 60
"""Steps drawn: more could not be distinguished."""
_WIDTH = 0.86  # of a step; the rest is a gap


@dataclass(frozen=True, kw_only=True)
class PackingPanel:
    """One packer."""

    title: str
    """Name of the packer and its headline figures."""
    costs: npt.NDArray[np.float64]
    """[steps, micro-batches] cost, all panels in the same unit."""


def plot_packing(
    panels: Sequence[PackingPanel], path: Path, *, title: str = "", most: int = _MOST
) -> None:
    """Draws one panel per packer, all on the same axes, and writes a PNG file.

    Args:
        panels: at least one, each with at least one step and micro-batch.
        path: the file; its folder is created if needed.
        title: title of the picture.
        most: steps drawn at most. If there are more, the middle ones are drawn, and the axis says
            so.

    Raises:
        ConfigurationError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    if not panels or any(panel.costs.ndim != 2 or not panel.costs.size for panel in panels):
        raise ConfigurationError("a picture of packing needs [steps, micro-batches] of costs")
    steps = max(len(panel.costs) for panel in panels)
    shown = min(steps, max(most, 1))
    begin = (steps - shown) // 2
    figure = new_figure(12, 0.9 + 2.4 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels):
        _draw(axis, panel.costs[begin : begin + shown], begin)
        axis.set_title(panel.title, loc="left", fontsize=11)
        axis.set_ylabel("cost (1 = mean)")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
        axis.set_ylim(bottom=0)
    part = f" (the middle {shown:,} of {steps:,})" if shown < steps else ""
    axes[-1].set_xlabel(f"step{part}")
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_COST, label="cost of a micro-batch"),
        Patch(color=_IDLE, label="up to the costliest of the step"),
    ]
    save_figure(figure, path, handles=handles, title=title)


def _draw(axis: object, costs: npt.NDArray[np.float64], begin: int) -> None:
    steps, count = costs.shape
    falling = -np.sort(-costs, axis=1)
    inside = np.linspace(-_WIDTH / 2, _WIDTH / 2, count + 1)
    edges = (np.arange(begin, begin + steps)[:, None] + inside).ravel()
    costliest = np.repeat(falling[:, :1], count, axis=1)
    for heights, colour in ((costliest, _IDLE), (falling, _COST)):
        # One shape, zero high in the gaps: thousands of bars would take long to draw.
        with_gaps = np.pad(heights, ((0, 0), (0, 1))).ravel()[:-1]
        axis.stairs(with_gaps, edges, fill=True, color=colour, linewidth=0)  # type: ignore[attr-defined]
