"""The papers, reproduced: runs entries, prints their tables, and updates docs/papers.md.

The page has a row for each entry. A run stores two cells of it, the paper's figures and evenstep's,
in results.json, and the page takes them from there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.papers.outcome import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
RESULTS = Path(__file__).with_name("results.json")
"""For each entry the paper's figures and evenstep's."""
SEED = 0
RUNS = {
    "odb/appendix-d": "audits:appendix_d",
    "odb/sorted": "baselines:sorted_rows",
    "odb/packing": "baselines:packing",
    "odb/figure-2a": "sweeps:figure_2a",
    "odb/figure-2b": "sweeps:figure_2b",
    "odb/table-2": "sweeps:table_2",
    "odb/table-4": "endings:table_4",
    "odb/table-5": "endings:table_5",
    "odb/table-6": "audits:table_6",
    "odb/tables-13-14": "shapes:tables_13_14",
    "odb/table-17": "sweeps:table_17",
    "wlb/figure-3": "positions:figure_3",
    "wlb/table-2": "table2:table_2",
    "wlb/ranks": "table2:by_ranks",
    "wlb/figure-15": "sharded_layer:figure_15",
    "overlord/figure-12": "end_to_end:figure_12",
    "pool_sort/sort-and-shuffle": "tables:sort_and_shuffle",
    "pool_sort/pool-size": "tables:pool_sizes",
    "pool_sort/workers": "tables:workers",
}
"""CHAPTER/KEY -> module of the chapter's package, and the function in it that takes the seed and
returns an `Outcome`."""
SLOW = {"odb/table-4", "odb/tables-13-14", "wlb/ranks", "wlb/figure-15"}
"""Those that take minutes, or want a quiet machine."""


def chosen(wanted: Sequence[str], fast: bool) -> list[str]:
    """Entries to run: those named, or all of the chapters named, or all."""
    for name in wanted:
        if not any(name in (known, known.split("/")[0]) for known in RUNS):
            raise SystemExit(f"{name} is no entry that runs; there are {', '.join(sorted(RUNS))}")
    return [
        name
        for name in RUNS
        if not (fast and name in SLOW) and (not wanted or {name, name.split("/")[0]} & set(wanted))
    ]


def outcome_of(name: str) -> Outcome:
    module, function = RUNS[name].split(":")
    path = f"benchmarks.papers.{name.split('/')[0]}.{module}"
    outcome: Outcome = getattr(import_module(path), function)(SEED)
    return outcome


def filled(page: str, results: Mapping[str, Sequence[str]]) -> str:
    """The page with the stored figures in the rows of their entries."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        if (name := cells[-1].removesuffix(" |")) in results:
            cells[2:4] = results[name]
            lines[number] = " | ".join(cells)
    return "\n".join(lines)


def store(name: str, outcome: Outcome) -> None:
    """Stores an entry's figures, and puts them into its row of the page."""
    results = json.loads(RESULTS.read_text()) | {name: [outcome.paper, outcome.ours]}
    ordered = {name: results[name] for name in RUNS if name in results}
    rows = (f" {json.dumps(name)}: {json.dumps(row)}" for name, row in ordered.items())
    RESULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    PAGE.write_text(filled(PAGE.read_text(), ordered))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python -m benchmarks.papers.book --run odb/table-17"
    )
    parser.add_argument("--run", nargs="*", metavar="CHAPTER[/KEY]", help="run these; all if empty")
    parser.add_argument("--fast", action="store_true", help="leave slow entries as they are")
    options = parser.parse_args()
    if options.run is None:
        print("entries:", ", ".join(RUNS))
    for name in [] if options.run is None else chosen(options.run, options.fast):
        start = time.perf_counter()
        outcome = outcome_of(name)
        store(name, outcome)
        seconds = time.perf_counter() - start
        print(f"{name}, {seconds:.1f} s\n\n{outcome.markdown()}\n", flush=True)


if __name__ == "__main__":
    main()
