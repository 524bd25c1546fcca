"""The picture of `figures.py`: predictions as bars and lines, the paper's figures as marks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evenstep.tools.report.picture import new_figure

# Colour-blind safe.
_SHADES = {"fixed": "#8c8c8c", "wlb": "#0072b2", "evenstep": "#009e73"}
_PAPER = "#d55e00"


def plot(result: Mapping[str, Any], paper: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Writes a PNG file."""
    figure = new_figure(11.5, 7.6)
    axes = figure.subplots(2, 2)
    _figure_12(axes[0, 0], result, paper["figure 12"])
    _figure_13(axes[0, 1], result, paper["figure 13"])
    _figure_14(axes[1, 0], result, paper["figure 14"])
    _figure_15(axes[1, 1], result, paper["figure 15"])
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6")
        axis.set_axisbelow(True)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_ylabel("predicted speedup")
        axis.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
        axis.set_ylim(0.9, 1.02 * max(1.45, axis.get_ylim()[1]))
    figure.suptitle(
        "WLB-LLM, figures 12 to 15: predictions of a stated model, not measurements",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _figure_12(axis: Any, result: Mapping[str, Any], paper: Mapping[str, float]) -> None:
    jobs = result["figure 12"]
    names = [*jobs, "mean"]
    for place, (system, shade) in enumerate(_SHADES.items()):
        values = [job[system] for job in jobs.values()]
        values.append(sum(values) / len(values))
        at = [number + 0.27 * (place - 1) for number in range(len(names))]
        axis.bar(at, values, 0.25, color=shade, label=system)
        if system in paper:
            label = "paper's mean" if system == "wlb" else None
            axis.plot(at[-1], paper[system], "D", color=_PAPER, markersize=5, label=label)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_title("12: over Plain-4D", loc="left")


def _figure_13(axis: Any, result: Mapping[str, Any], paper: Mapping[str, float]) -> None:
    job = result["figure 12"]["7B-128K"]
    keys = ("per-document", "adaptive", "packing", "wlb", "evenstep")
    labels = ("per-document", "adaptive", "WLB packing", "both", "evenstep")
    shades = [_SHADES["evenstep" if key == "evenstep" else "wlb"] for key in keys]
    axis.bar(range(len(keys)), [job[key] for key in keys], 0.6, color=shades)
    axis.plot(range(len(paper)), list(paper.values()), "D", color=_PAPER, label="paper")
    axis.set_xticks(range(len(keys)), labels, fontsize=8)
    axis.set_title("13: parts, 7B-128K", loc="left")


def _figure_14(axis: Any, result: Mapping[str, Any], paper: Mapping[str, float]) -> None:
    jobs = result["figure 14"]
    windows = [int(window) for window in jobs]
    for system in ("wlb", "evenstep"):
        values = [job[system] for job in jobs.values()]
        axis.plot(windows, values, "o-", color=_SHADES[system], label=system)
    known = {int(window): value for window, value in paper.items()}
    axis.plot(list(known), list(known.values()), "D", color=_PAPER, label="paper")
    axis.set_xticks(windows, [f"{window}K" for window in windows])
    axis.set_title("14: 7B, by context window", loc="left")


def _figure_15(axis: Any, result: Mapping[str, Any], paper: Mapping[str, float]) -> None:
    keys = ("per-document", "adaptive by a wrong table", "optimal", "hybrid")
    labels = ("per-document", "adaptive,\nerring table", "optimal", "with hybrid")
    for place, (window, case) in enumerate(result["figure 15"].items()):
        at = [number + 0.4 * (place - 0.5) for number in range(len(keys))]
        values = [case["layer"][key] for key in keys]
        axis.bar(at, values, 0.36, color=("#56b4e9", "#0072b2")[place], label=window)
        axis.plot(at[0], paper[f"per-document, {window}"], "D", color=_PAPER)
    mean = paper["adaptive over per-sequence"]
    axis.plot(1, mean, "D", color=_PAPER, label="paper")
    axis.set_xticks(range(len(keys)), labels, fontsize=8)
    axis.set_title("15: one layer, CP 4, over per-sequence sharding", loc="left")
