"""Figures 12 to 15 of the WLB-LLM paper as predictions, beside what its text says of them.

Nothing here was measured on a cluster: step times follow from a stated latency model and stated
hardware.
`--repeats` is the number of streams of documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.lib.report import Table, parser, show
from benchmarks.papers.wlb.cluster_assumptions import MODELS, TABLE_1
from benchmarks.papers.wlb.figures_run import SEVEN_128, Bench, Rates, measure

PAPER: Mapping[str, Mapping[str, float]] = {
    "figure 12": {"fixed": 1.03, "wlb": 1.23, "wlb, 64K": 1.15, "wlb, 128K": 1.30},
    "figure 13": {
        "per-document": 1.02,
        "adaptive": 1.05,
        "packing": 1.28,
        "packing and adaptive": 1.33,
    },
    "figure 14": {"160": 1.40},
    "figure 15": {
        "per-document, 64K": 1.01,
        "per-document, 128K": 1.07,
        "adaptive": 1.075,
    },
}
"""What the paper's text states; its bars are not printed as numbers."""


def mean(jobs: Mapping[str, Rates], system: str, ending: str = "") -> float:
    return float(np.mean([each[system] for name, each in jobs.items() if name.endswith(ending)]))


def x(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def figure_12(result: Mapping[str, Any]) -> Table:
    jobs, paper = result["figure 12"], PAPER["figure 12"]
    header = ["job", "TP, CP, PP, DP", "GPUs", "Plain-4D", "Fixed-4D", "Fixed-4D: paper"]
    header += ["WLB-LLM", "WLB-LLM: paper", "evenstep"]
    rows = [
        [
            s.name,
            f"{s.tensor}, {s.context_ranks}, {s.stages}, {s.data}",
            f"{s.gpus}",
            "1.00",
            x(jobs[s.name]["fixed"]),
            "",
            x(jobs[s.name]["wlb"]),
            "",
            x(jobs[s.name]["evenstep"]),
        ]
        for s in TABLE_1
    ]
    for label, ending in (("mean", ""), ("mean, 64K", "-64K"), ("mean, 128K", "-128K")):
        suffix = label.removeprefix("mean")
        fixed, wlb = (mean(jobs, system, ending) for system in ("fixed", "wlb"))
        row = [label, "", "", "1.00", x(fixed), x(paper.get("fixed" + suffix)), x(wlb)]
        rows.append([*row, x(paper.get("wlb" + suffix)), x(mean(jobs, "evenstep", ending))])
    return Table(header, rows, "figure 12")


def figure_13(result: Mapping[str, Any]) -> Table:
    job, paper = result["figure 12"][SEVEN_128.name], PAPER["figure 13"]
    rows = [
        ["per-document sharding", x(job["per-document"]), x(paper["per-document"])],
        ["adaptive sharding", x(job["adaptive"]), x(paper["adaptive"])],
        ["WLB packing", x(job["packing"]), x(paper["packing"])],
        ["WLB packing, adaptive sharding", x(job["wlb"]), x(paper["packing and adaptive"])],
        ["evenstep: packing, order, hybrid sharding", x(job["evenstep"]), ""],
    ]
    return Table(["of 7B-128K over Plain-4D", "predicted", "paper"], rows, "figure 13")


def figure_14(result: Mapping[str, Any]) -> Table:
    jobs, paper = result["figure 14"], PAPER["figure 14"]
    rows = [
        [f"{window}K", x(job["wlb"]), x(paper.get(window)), x(job["evenstep"])]
        for window, job in jobs.items()
    ]
    return Table(["context window", "WLB-LLM", "paper", "evenstep"], rows, "figure 14")


def figure_15(result: Mapping[str, Any]) -> Table:
    cases, paper = result["figure 15"], PAPER["figure 15"]
    header = ["over per-sequence sharding", *(f"layer, {name}" for name in cases), "paper"]
    header += [f"attention alone, {name}" for name in cases]
    labels = {
        "per-document": "per-document",
        "adaptive": "adaptive, whose predictions are right here",
        "hybrid": "evenstep: hybrid too",
    }
    printed = {
        "per-document": ", ".join(x(paper[f"per-document, {name}"]) for name in cases),
        "adaptive": f"{paper['adaptive']:.3f}",
    }
    rows = [
        [label, *(f"{case['layer'][name]:.3f}" for case in cases.values())]
        + [printed.get(name, "")]
        + [f"{case['attention'][name]:.3f}" for case in cases.values()]
        for name, label in labels.items()
    ]
    return Table(header, rows, "figure 15")


def models() -> Table:
    header = ["model", "layers", "width", "heads of 128", "FFN width", "parameters, 1e9"]
    rows = []
    for model in MODELS.values():
        numbers = (model.layers, model.hidden_size, model.heads, model.ffn_size)
        rows.append([model.name, *(f"{n:,}" for n in numbers), f"{model.parameters / 1e9:.2f}"])
    return Table(header, rows, "models")


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.papers.wlb.figures",
        repeats=2,
    )
    arguments.add_argument("--batches", type=int, default=80, help="global batches of a stream")
    options = arguments.parse_args()
    seeds = range(options.seed, options.seed + options.repeats)
    bench = Bench(seeds=seeds, batches=options.batches)
    result = measure(bench)
    tables = (figure(result) for figure in (figure_12, figure_13, figure_14, figure_15))
    show(*tables, models(), as_json=options.json)


if __name__ == "__main__":
    main()
