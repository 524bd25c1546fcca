"""Entries of the chapter on OVERLORD."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry

CHAPTER = Chapter(
    name="overlord",
    page="overlord.md",
    title="OVERLORD",
    head="""\
A data loading service for training on many sources: roles, plans and balance.""",
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
    ],
)
