"""Entries of the chapter on WLB-LLM."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.wlb.text import (
    FIGURE_1A,
    FIGURE_3,
    HEAD,
    WLB_ROWS,
)

CHAPTER = Chapter(
    name="wlb",
    page="wlb-llm.md",
    title="WLB-LLM",
    head=HEAD,
    entries=[
        Entry(
            key="figures-1a-4a",
            item="Figures 1a, 4a",
            title="how unlike the GPUs of one job are",
            state="predicted",
            differs="One step in the model, of a model and documents that the paper does not name; "
            "theirs is a trace.",
            text=FIGURE_1A,
            run="benchmarks.papers.wlb.latency_spread:figures_1a_4a",
        ),
        Entry(
            key="figure-3",
            item="Figure 3",
            title="lengths, and where in a window long documents lie",
            state="reproduced",
            differs="Lengths are those of a distribution fitted to Table 2's first row.",
            text=FIGURE_3,
            run="benchmarks.papers.wlb.positions:figure_3",
        ),
        Entry(
            key="table-1",
            item="Table 1",
            title="models and ranks",
            state="reproduced",
            differs="GPUs of three of its rows are not the product of their ranks.",
            text="In code: `evenstep.tools.simulate.cluster_assumptions.TABLE_1`, by which the "
            "figures below are predicted.",
            command="python -m benchmarks.papers.wlb.figures --markdown docs/wlb-figures.md",
        ),
        Entry(
            key="table-2",
            item="Table 2",
            title="how even micro-batches are under each way of packing",
            state="reproduced",
            differs="Documents are drawn from a distribution fitted to the first row.",
            text="On [a page of its own](../wlb-table2.md); the rows of WLB-LLM itself are next.",
            command="python -m benchmarks.papers.wlb.table2 --markdown docs/wlb-table2.md",
        ),
        Entry(
            key="algorithm-1",
            item="Algorithm 1",
            title="Table 2's rows of WLB-LLM, to the letter",
            state="reproduced",
            differs="Neither the lengths from which documents wait nor the limit of a micro-batch "
            "are printed, and both decide.",
            text=WLB_ROWS,
            run="benchmarks.papers.wlb.queues:wlb_rows",
        ),
        Entry(
            key="figures-12-15",
            item="Figures 12 to 15",
            title="speedups of whole training jobs",
            state="predicted",
            differs="Step times are those of a model of costs.",
            text="On [a page of its own](../wlb-figures.md).",
            command="python -m benchmarks.papers.wlb.figures --markdown docs/wlb-figures.md",
        ),
    ],
)
