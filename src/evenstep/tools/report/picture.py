"""Compute time of every rank in every step, as a picture which shows who waits for whom.

A step lasts as long as its slowest rank. Each rank has a coloured bar per step, and above it, in
grey, the time until the slowest rank is done. Grey is time that was paid for and not used. The
picture has no background and grey letters, so that it can be read on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError, needing

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # colour-blind safe
_IDLE = "#80808060"
INK = "#808080"


@dataclass(frozen=True, kw_only=True)
class StepPanel:
    """One run."""

    title: str
    """Name of the run and its headline figures; may have two lines."""
    seconds: npt.NDArray[np.float64]
    """[steps, ranks] time that each rank computed, without waiting."""


def plot_steps(panels: Sequence[StepPanel], path: Path, *, title: str) -> None:
    """Draws one panel per run, all on the same axes, and writes a PNG file.

    Args:
        panels: at least one, each with at least one step and rank.
        path: the file; its folder is created if needed.
        title: title of the picture.

    Raises:
        ConfigurationError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    if not panels or any(panel.seconds.ndim != 2 or not panel.seconds.size for panel in panels):
        raise ConfigurationError("a picture of steps needs panels with [steps, ranks] seconds")
    figure = new_figure(9, 0.9 + 1.9 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    ranks = max(panel.seconds.shape[1] for panel in panels)
    for axis, panel in zip(axes, panels):
        _draw(axis, panel.seconds)
        dress(axis, panel.title, "seconds computing")
        axis.margins(x=0.01)
    axes[-1].set_xlabel("step", color=INK)
    from matplotlib.patches import Patch

    handles = [Patch(color=_colour(rank), label=f"rank {rank}") for rank in range(min(ranks, 6))]
    handles.append(Patch(color=_IDLE, label="waiting for the slowest rank"))
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=INK)
    save(figure, path, handles)


def new_figure(width: float, height: float) -> Any:
    """A matplotlib `Figure` of `width` x `height` inches, without a display.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with needing("plots need matplotlib", "demo"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    # No pyplot: it changes global state and looks for a display.
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path, handles: Sequence[Any]) -> None:
    """Writes a PNG file, with a legend of these below."""
    place: Any = {"loc": "outside lower center", "ncols": min(3, len(handles)), "frameon": False}
    figure.legend(handles=handles, labelcolor=INK, **place)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", transparent=True)


def dress(axis: Any, title: str, unit: str) -> None:
    """Letters and lines that can be read on light and dark pages."""
    axis.set_title(title, loc="left", fontsize=11, color=INK)
    axis.set_ylabel(unit, color=INK)
    axis.tick_params(colors=INK)
    axis.spines[:].set_color(INK)
    axis.spines[["top", "right"]].set_visible(False)


def _draw(axis: Any, seconds: npt.NDArray[np.float64]) -> None:
    steps, ranks = seconds.shape
    width = 0.84 / ranks
    slowest = seconds.max(axis=1)
    for rank in range(ranks):
        left = np.arange(steps) - 0.42 + rank * width
        mine = seconds[:, rank]
        options = {"width": width, "align": "edge", "linewidth": 0}
        axis.bar(left, mine, color=_colour(rank), **options)
        axis.bar(left, slowest - mine, bottom=mine, color=_IDLE, **options)


def _colour(rank: int) -> str:
    return _COLOURS[rank % len(_COLOURS)]
