"""Entries of the chapter on LengthPoolSortDataset, in the order of its guide."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.pool_sort import text

_TESTS = "python -m pytest tests/data/test_pool_sort_dataset.py"

CHAPTER = Chapter(
    name="pool_sort",
    page="length-pool-sort.md",
    title="LengthPoolSortDataset",
    head=text.HEAD,
    entries=[
        Entry(
            key="mechanism",
            item="Mechanism",
            title="sort, shuffle with the same seed, yield one by one",
            state="reproduced",
            differs="The permutation is another one by default, a function of (seed, epoch, pool); "
            '`order="reference"` gives the original\'s, sample for sample.',
            command=f"{_TESTS} -k 'reference or original'",
            text=text.MECHANISM,
        ),
        Entry(
            key="off",
            item="`--length-sort-pool-size 0`",
            title="off at 0",
            state="reproduced",
            differs="Nothing differs.",
            command=f"{_TESTS} -k off",
        ),
        Entry(
            key="sort-and-shuffle",
            item="Table 1",
            title="sort only, shuffle only, both",
            state="reproduced",
            differs="The guide has words where these are figures.",
            run="benchmarks.papers.pool_sort.tables:sort_and_shuffle",
            text=text.SORT_AND_SHUFFLE,
        ),
        Entry(
            key="pool-size",
            item="Table 2",
            title="pool sizes",
            state="reproduced",
            differs="A whole share as one pool is not perfect, as shares differ.",
            run="benchmarks.papers.pool_sort.tables:pool_sizes",
            text=text.POOL_SIZE,
        ),
        Entry(
            key="workers",
            item="Several workers",
            title="a pool in each worker",
            state="smaller",
            differs="Nothing is diluted by workers as such; smaller pools are.",
            run="benchmarks.papers.pool_sort.tables:workers",
            text=text.WORKERS,
        ),
        Entry(
            key="checkpoint",
            item="Checkpoint caveat",
            title="what a resume loses of the pool",
            state="reproduced",
            differs="A resumed pool goes on at its place, so nothing is lost or dealt again; the "
            "original loses up to a pool.",
            command=f"{_TESTS} -k resume",
        ),
        Entry(
            key="key",
            item="Sort key",
            title="total_len, else the number of tokens",
            state="reproduced",
            differs="`length` and `input_ids` are known, too.",
            command=f"{_TESTS} -k key",
        ),
        Entry(
            key="outputs",
            item="Expected outputs",
            title="is it active, is rank synchronisation the bottleneck, which pool",
            state="reproduced",
            differs="The guide lists questions; a command answers them, from lengths and from the "
            "step log of a run.",
            command="evenstep advise sharegpt4o --pool-sort --batch-size 2 --sample-seconds 0.01",
        ),
    ],
)
