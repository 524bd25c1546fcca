"""Entries of the chapter on OVERLORD."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.overlord.text import FIGURE_12, HEAD

CHAPTER = Chapter(
    name="overlord",
    page="overlord.md",
    title="OVERLORD",
    head=HEAD,
    entries=[
        Entry(
            key="figure-3",
            item="Figure 3",
            title="imbalance of micro-batches as samples come",
            state="predicted",
            differs="Corpora are others, and step costs are those of a model.",
            text="On [a page of its own](../service-figures.md).",
            command="python -m benchmarks.service.imbalance --data FOLDER",
        ),
        Entry(
            key="table-1",
            item="Table 1",
            title="the five models",
            state="reproduced",
            differs="Widths of feed-forward networks, and the experts of tMoE, are not printed; "
            "they are those that make models of the size in the name.",
            run="benchmarks.papers.overlord.end_to_end:table_1",
        ),
        Entry(
            key="figure-12",
            item="Figure 12",
            title="gain in throughput by model and context",
            state="predicted",
            differs="Operations are balanced, no time is measured; images are as large as the "
            "context allows, of which the paper says nothing.",
            text=FIGURE_12,
            run="benchmarks.papers.overlord.end_to_end:figure_12",
        ),
    ],
)
