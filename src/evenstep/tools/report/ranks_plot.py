"""A picture of groups of ranks: which document each rank works on, micro-batch after micro-batch.

Time goes from left to right, in units of cost, and each rank is a line. A group is a block of as
many lines as it has ranks, and its documents follow each other in it, each as wide as its share of
the time. Grey is time that ranks wait for the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.dynamic_context import ContextPlan
from evenstep.tools.report.picture import new_figure, save_figure

_COLUMNS = 1600
_IDLE = 0.85


@dataclass(frozen=True, kw_only=True)
class RanksPanel:
    """One plan of a step."""

    title: str
    plan: ContextPlan
    time: Float64Array
    """[groups] time of each, all panels in the same unit."""


def plot_ranks(
    panels: Sequence[RanksPanel], lengths: Int64Array, path: Path, *, title: str = ""
) -> None:
    """Draws one panel per plan, all on one axis of time, and writes a PNG file.

    Args:
        lengths: [documents] int64 tokens, of which all panels are plans.

    Raises:
        ConfigurationError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    if not panels or not len(lengths):
        raise ConfigurationError("a picture of ranks needs a plan and documents")
    ends = [_ends(panel) for panel in panels]
    longest = max(float(each[-1]) for each in ends)
    figure = new_figure(12, 0.9 + 2.6 * len(panels))
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    shortest, most = int(lengths.min()), int(lengths.max())

    def colour(tokens: Any) -> Any:
        tint = np.log(tokens / shortest) / max(np.log(most / shortest), 1e-9)
        return colormaps["viridis_r"](tint)

    colours = colour(lengths)[:, :3]
    for axis, panel, end in zip(axes, panels, ends):
        image = _image(panel, lengths, colours, end, longest)
        # Time 1 is that of the first panel.
        extent = (0, longest / float(ends[0][-1]), panel.plan.ranks, 0)
        axis.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
        for bound in end[:-1]:
            axis.axvline(bound / float(ends[0][-1]), color="white", linewidth=1.5)
        axis.set_title(panel.title, loc="left", fontsize=11)
        axis.set_ylabel("rank")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("time (1 = the step of the first)")
    middle = round((shortest * most) ** 0.5)
    handles = [
        Patch(color=colour(each), label=label)
        for each, label in (
            (shortest, f"documents of {shortest:,} tokens"),
            (middle, f"{middle:,}"),
            (most, f"{most:,}"),
        )
    ]
    handles.append(Patch(color=(_IDLE,) * 3, label="waiting"))
    save_figure(figure, path, handles=handles, title=title)


def _ends(panel: RanksPanel) -> Float64Array:
    """[micro-batches] when each ends."""
    most = np.zeros(panel.plan.micro_batches)
    np.maximum.at(most, panel.plan.micro_batch, panel.time)
    ends: Float64Array = most.cumsum()
    return ends


def _image(
    panel: RanksPanel,
    lengths: Int64Array,
    colours: Float64Array,
    ends: Float64Array,
    longest: float,
) -> Float64Array:
    """[ranks, columns, 3] colours; white after the last micro-batch."""
    plan, scale = panel.plan, _COLUMNS / longest
    image = np.ones((plan.ranks, _COLUMNS, 3))
    image[:, : round(float(ends[-1]) * scale)] = _IDLE
    starts = np.append(0.0, ends[:-1])
    for group in range(len(plan)):
        own = plan.group(group)
        if not len(own):
            continue
        # Documents next to each other differ in shade, whatever their lengths.
        share = lengths[own].astype(np.float64)
        share *= share + 24_576
        until = np.append(0.0, share.cumsum()) / share.sum() * panel.time[group]
        until = np.rint((starts[plan.micro_batch[group]] + until) * scale).astype(np.int64)
        rows = slice(plan.first[group], plan.first[group] + plan.size[group])
        for at, document in enumerate(own.tolist()):
            shade = 1.0 if at % 2 else 0.88
            image[rows, until[at] : until[at + 1]] = colours[document] * shade
        image[plan.first[group], until[0] : until[-1]] *= 0.9 if plan.size[group] > 1 else 1.0
    return image
