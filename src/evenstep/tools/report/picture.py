"""The frame of every plot: a figure without a display, and a PNG file with a legend below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def new_figure(width: float, height: float) -> Any:
    """A matplotlib `Figure` of `width` x `height` inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError("plots need matplotlib: pip install 'evenstep[demo]'") from error

    # No pyplot: it changes global state and looks for a display.
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path, *, handles: Sequence[Any], title: str) -> None:
    """Adds the legend and the title, and writes the file."""
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
