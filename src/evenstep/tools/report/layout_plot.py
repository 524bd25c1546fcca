"""A plot of a layout of loaders: the time that each is busy in a step, its processes and memory."""

from __future__ import annotations

from pathlib import Path

from evenstep.strategy.loaders import LoaderLayout
from evenstep.tools.report.picture import new_figure, save_figure

_SHARED, _WHOLE, _WORKERS, _LIMIT = "#e69f00", "#0072b2", "#56b4e9", "#d55e00"


def plot_layout(layout: LoaderLayout, path: Path, *, title: str = "") -> None:
    """Draws a bar for each loader, and writes a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(11, 6.6)
    busy, processes, memory = figure.subplots(3, 1, sharex=True)
    numbers = range(len(layout.loaders))
    shared = [any(share.parts > 1 for share in each.shares) for each in layout.loaders]
    colours = [_SHARED if each else _WHOLE for each in shared]
    busy.bar(numbers, [each.seconds for each in layout.loaders], color=colours)
    line = busy.axhline(layout.step_seconds, color=_LIMIT, linewidth=1)
    busy.set_ylabel("seconds a step")
    processes.bar(numbers, [1] * len(layout.loaders), color=colours)
    workers = [each.workers for each in layout.loaders]
    processes.bar(numbers, workers, bottom=1, color=_WORKERS)
    processes.set_ylabel("processes")
    memory.bar(numbers, [each.memory / 2**20 for each in layout.loaders], color=colours)
    memory.set_ylabel("MiB")
    memory.set_xlabel("loader")
    for axis in (busy, processes, memory):
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    from matplotlib.patches import Patch

    line.set_label("the trainer's step")
    handles = [
        Patch(color=_WHOLE, label="loader of whole sources"),
        Patch(color=_SHARED, label="loader with a part of a source"),
        Patch(color=_WORKERS, label="workers"),
        line,
    ]
    heading = (
        f"{len(layout.sources):,} sources in {len(layout.loaders):,} loaders with "
        f"{layout.workers:,} workers"
    )
    save_figure(figure, path, handles=handles, title=title or heading)
