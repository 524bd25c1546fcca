"""Entries of the chapter on WLB-LLM."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry

CHAPTER = Chapter(
    name="wlb",
    page="wlb-llm.md",
    title="WLB-LLM",
    head="""\
Workload-balanced 4D parallelism: packing of documents by cost, and sharding of sequences over
ranks.""",
    entries=[
        Entry(
            key="table-2",
            item="Table 2",
            title="how even micro-batches are under each way of packing",
            state="reproduced",
            differs="Documents are drawn from a distribution fitted to the first row.",
            text="On [a page of its own](../wlb-table2.md).",
            command="python -m benchmarks.papers.wlb.table2 --markdown docs/wlb-table2.md",
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
