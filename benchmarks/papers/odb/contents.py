"""Entries of the ODB paper."""

from __future__ import annotations

from benchmarks.papers.book.chapters import Chapter, Entry
from benchmarks.papers.odb.paper import CELLS
from benchmarks.papers.odb.shapes import drifting
from benchmarks.papers.odb.text import HEAD, SHAPES, TABLE_4, TABLE_5

CHAPTER = Chapter(
    name="odb",
    page="odb.md",
    title="ODB, online dynamic batching",
    head=HEAD,
    entries=[
        Entry(
            key="table-4",
            item="Table 4",
            title="what may be left when an epoch stops",
            state="reproduced",
            differs="The bound is the same; ranks that know each other's rest leave less.",
            text=TABLE_4,
            run="benchmarks.papers.odb.endings:table_4",
            slow=True,
        ),
        Entry(
            key="table-5",
            item="Table 5",
            title="every sample once",
            state="reproduced",
            differs="They do not.",
            text=TABLE_5,
            run="benchmarks.papers.odb.endings:table_5",
        ),
        Entry(
            key="tables-13-14",
            item="Tables 13, 14",
            title="samples, tokens and padding per update",
            state="reproduced",
            differs="Lengths are fitted to Table 10, and the package that the paper ran begins "
            "each epoch with small windows.",
            text=SHAPES.format(drifting=drifting(CELLS)),
            run="benchmarks.papers.odb.shapes:tables_13_14",
            slow=True,
        ),
    ],
)
