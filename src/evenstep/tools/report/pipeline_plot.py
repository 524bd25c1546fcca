"""A picture of an iteration on a pipeline: what each stage does when, and when it waits.

One row a stage, one bar a pass, with the number of its micro-batch as it was given, so that two
panels of the same micro-batches show how they were ordered; a point and the chunk's number follow
where a stage has several. The more work, the deeper the colour.
Grey is time in which a stage waits, until the iteration ends; the dashed line says when it would
end if all micro-batches were equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.tools.report.picture import new_figure, save_figure
from evenstep.tools.simulate.pipeline_run import PipelineRun

__all__ = ["PipelinePanel", "plot_pipeline"]

_FORWARD = (0x00, 0x72, 0xB2)
_BACKWARD = (0xE6, 0x9F, 0x00)
_IDLE = "#d0d0d0"
_PALEST = 0.3  # of the full colour, for a micro-batch without work
_CHARACTER = 0.0065  # width of a character, as part of the axis
_MARGIN = 1.01


@dataclass(frozen=True, kw_only=True)
class PipelinePanel:
    """One iteration."""

    title: str
    """What it is and its headline figures; may have two lines."""
    run: PipelineRun


def plot_pipeline(
    panels: Sequence[PipelinePanel], path: Path, *, title: str = "", unit: str = ""
) -> None:
    """Draws one panel per iteration, all on the same axis of time, and writes a PNG file.

    Args:
        panels: at least one; their times in the same unit.
        path: the file; its folder is made if need be.
        title: of the picture.
        unit: of the times, for the axis.

    Raises:
        ConfigurationError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    if not panels or any(not panel.run.makespan for panel in panels):
        raise ConfigurationError("a picture of a pipeline needs panels with work in them")
    rows = [panel.run.schedule.stages for panel in panels]
    figure = new_figure(12, 1.0 + sum(0.9 + 0.42 * r for r in rows))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    span = _MARGIN * max(max(p.run.makespan, p.run.balanced_makespan) for p in panels)
    deepest = max(float(panel.run.forward.sum(axis=1).max()) for panel in panels)
    for axis, panel in zip(axes, panels):
        _draw(axis, panel.run, span, deepest)
        axis.set_title(panel.title, loc="left", fontsize=11)
    axes[-1].set_xlabel(f"time ({unit})" if unit else "time")
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_shades(_FORWARD, np.array([1.0]))[0], label="forward"),
        Patch(color=_shades(_BACKWARD, np.array([1.0]))[0], label="backward"),
        Patch(color=_IDLE, label="waiting"),
        Line2D([], [], color="black", linestyle="--", label="end with equal micro-batches"),
    ]
    save_figure(figure, path, handles=handles, title=title)


def _draw(axis: Any, run: PipelineRun, span: float, deepest: float) -> None:
    stages = run.schedule.stages
    axis.barh(np.arange(stages), run.makespan, height=0.86, color=_IDLE, linewidth=0)
    depth = run.forward.sum(axis=1)[run.graph.micro_batch] / deepest
    colours = np.where(run.backward[:, None], _shades(_BACKWARD, depth), _shades(_FORWARD, depth))
    widths = run.end - run.start
    axis.barh(
        run.stage,
        widths,
        left=run.start,
        height=0.86,
        color=colours,
        edgecolor="white",
        linewidth=0.8,
    )
    chunks = run.part // stages
    for number, width in enumerate(widths.tolist()):
        label = str(run.micro_batch[number])
        if run.schedule.chunks > 1 and _fits(f"{label}.{chunks[number]}", width, span):
            label += f".{chunks[number]}"
        if _fits(label, width, span):
            deep = not run.backward[number] and depth[number] > 0.5
            axis.text(
                float(run.start[number]) + width / 2,
                int(run.stage[number]),
                label,
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if deep else "black",
            )
    axis.axvline(run.balanced_makespan, color="black", linestyle="--", linewidth=1.2)
    axis.set_xlim(0, span)
    axis.set_ylim(stages - 0.5, -0.5)
    axis.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _fits(label: str, width: float, span: float) -> bool:
    return width >= _CHARACTER * span * (len(label) + 0.5)


def _shades(colour: tuple[int, int, int], depth: npt.NDArray[np.float64]) -> Any:
    """[passes, 3] the colour mixed with white, from 0 to 1."""
    strength = (_PALEST + (1 - _PALEST) * depth)[:, None]
    return 1 - strength * (1 - np.array(colour) / 255)
