"""Entries of the chapter on OVERLORD."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.overlord.text import ALGORITHM_2, FIGURE_12, FIGURE_14, HEAD

CHAPTER = Chapter(
    name="overlord",
    page="overlord.md",
    title="OVERLORD",
    head=HEAD,
    entries=[
        Entry(
            key="figure-2",
            item="Figure 2",
            title="token skew of texts and images",
            state="reproduced",
            differs="`coyo-text` is fitted to the three printed numbers; `navit_data` is not "
            "public.",
            text="On [a page of its own](../service-figures.md#beside-the-paper).",
            command="python -m benchmarks.service.imbalance --data FOLDER",
        ),
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
            key="algorithm-2",
            item="Algorithm 2",
            title="single images to clients",
            state="predicted",
            differs="evenstep keeps the images of a sample together; apart is an option.",
            text=ALGORITHM_2,
            run="benchmarks.papers.overlord.single_images:algorithm_2",
            slow=True,
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
        Entry(
            key="figure-13",
            item="Figure 13",
            title="host memory with sources divided among loaders",
            state="smaller",
            differs="120 sources on one machine: 4.2 times less memory than one loader on every "
            "rank, theirs 3.6.",
            command="python -m benchmarks.service.memory",
        ),
        Entry(
            key="figure-14",
            item="Figure 14",
            title="with and without Data Constructors",
            state="smaller",
            differs="Roles are real, clients are stubs, and all run in one process: work at each "
            "role is measured, a network is not.",
            text=FIGURE_14,
            run="benchmarks.papers.overlord.constructors:figure_14",
            slow=True,
        ),
        Entry(
            key="figure-16",
            item="Figure 16",
            title="production training on 4,096 GPUs",
            state="elsewhere",
            differs="It needs their cluster, model and data.",
        ),
    ],
)
