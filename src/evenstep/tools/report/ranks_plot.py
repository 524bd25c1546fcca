"""A picture of groups of ranks: which document each rank works on, micro-batch after micro-batch.

Time goes from left to right, in units of cost, and each rank is a line. A group is a block of as
many lines as it has ranks, and its documents follow each other in it, each as wide as its share of
the time. Grey is time that ranks wait for the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.dynamic_context import ContextPlan
from evenstep.plan.packing import DocumentCost
from evenstep.tools.report.picture import new_figure, save_figure

_IDLE = "#d9d9d9"


def plot_ranks(
    plans: Mapping[str, tuple[ContextPlan, Float64Array]],
    lengths: Int64Array,
    path: Path,
    *,
    title: str = "",
) -> None:
    """Draws one panel per plan, all on one axis of time, and writes a PNG file.

    Args:
        plans: by title, plans of the same documents, and the [groups] time of each group in one
            unit.
        lengths: [documents] int64 tokens.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(12, 0.9 + 2.6 * len(plans))
    axes = figure.subplots(len(plans), 1, sharex=True, squeeze=False)[:, 0]
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch

    shortest, longest = int(lengths.min()), int(lengths.max())
    norm = LogNorm(shortest, max(longest, shortest + 1))

    def colour(tokens: Any) -> Any:
        return colormaps["viridis_r"](norm(tokens))

    ends = [_ends(plan, seconds) for plan, seconds in plans.values()]
    unit = float(ends[0][-1])
    for axis, name, (plan, seconds), end in zip(axes, plans, plans.values(), ends):
        axis.axvspan(0, end[-1] / unit, color=_IDLE, linewidth=0)
        _draw(axis, plan, lengths, colour(lengths), seconds / unit, end / unit)
        axis.set_ylim(plan.ranks, 0)
        axis.set_title(name, loc="left", fontsize=11)
        axis.set_ylabel("rank")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlim(0, max(float(end[-1]) for end in ends) / unit)
    axes[-1].set_xlabel("time (1 = the step of the first)")
    middle = round((shortest * longest) ** 0.5)
    handles = [
        Patch(color=colour(shortest), label=f"documents of {shortest:,} tokens"),
        Patch(color=colour(middle), label=f"{middle:,}"),
        Patch(color=colour(longest), label=f"{longest:,}"),
        Patch(color=_IDLE, label="waiting"),
    ]
    save_figure(figure, path, handles=handles, title=title)


def _ends(plan: ContextPlan, seconds: Float64Array) -> Float64Array:
    """[micro-batches] when each ends."""
    most = np.zeros(plan.micro_batches)
    np.maximum.at(most, plan.micro_batch, seconds)
    ends: Float64Array = most.cumsum()
    return ends


def _draw(
    axis: Any,
    plan: ContextPlan,
    lengths: Int64Array,
    colours: Float64Array,
    seconds: Float64Array,
    ends: Float64Array,
) -> None:
    starts = np.append(0.0, ends[:-1])
    for group in range(len(plan)):
        own = plan.group(group)
        if not len(own):
            continue
        share = DocumentCost().of_documents(lengths[own])
        width = share / share.sum() * seconds[group]
        left = starts[plan.micro_batch[group]] + width.cumsum() - width
        axis.barh(
            np.full(len(own), plan.first[group]),
            width,
            plan.size[group],
            left,
            align="edge",
            color=colours[own],
            edgecolor="white",
            linewidth=0.3,
        )
    for end in ends[:-1]:
        axis.axvline(end, color="white", linewidth=1.5)
