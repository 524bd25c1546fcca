"""Entries of the chapter on LengthPoolSortDataset."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry

CHAPTER = Chapter(
    name="pool_sort",
    page="length-pool-sort.md",
    title="LengthPoolSortDataset",
    head="""\
Each rank sorts a pool of samples by length and shuffles it with the same seed as all others.""",
    entries=[
        Entry(
            key="checkpoint",
            item="Checkpoint caveat",
            title="what a resume loses of the pool",
            state="reproduced",
            differs="A resumed pool goes on at its place, so nothing is lost or dealt again.",
            command="pytest tests/data/test_pool_sort_dataset.py",
        ),
    ],
)
