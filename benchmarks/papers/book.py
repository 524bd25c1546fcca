"""The papers, reproduced: runs entries, prints their tables, and updates docs/papers.md.

The page has a row for each entry. A run changes two cells of it: the paper's figure and evenstep's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.papers.outcome import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
RUNS = {
    "odb/corollary-1": "audits:corollary_1",
    "odb/sorted": "baselines:sorted_rows",
    "odb/packing": "baselines:packing",
    "odb/figure-2a": "sweeps:figure_2a",
    "odb/figure-2b": "sweeps:figure_2b",
    "odb/table-2": "sweeps:table_2",
    "odb/table-3": "waits:table_3",
    "odb/table-4": "endings:table_4",
    "odb/table-5": "endings:table_5",
    "odb/table-6": "audits:table_6",
    "odb/table-10": "audits:table_10",
    "odb/table-12": "length_cache:table_12",
    "odb/tables-13-14": "shapes:tables_13_14",
    "odb/table-17": "sweeps:table_17",
    "odb/table-18": "scaling:table_18",
    "odb/table-19": "waits:table_19",
    "odb/table-20": "waits:table_20",
    "odb/table-21": "endings:table_21",
    "wlb/figures-1a-4a": "latency_spread:figures_1a_4a",
    "wlb/figure-3": "positions:figure_3",
    "wlb/figures-6-16": "packing_windows:figures_6_16",
    "wlb/figure-7": "operations:figure_7",
    "wlb/algorithm-1": "queues:wlb_rows",
    "wlb/ranks": "ranks:by_ranks",
    "wlb/solver": "solver:solver_rows",
    "wlb/assumptions": "sweep:sweep",
    "wlb/figure-15": "sharded_layer:figure_15",
    "overlord/figures-4-5": "sources:figures_4_5",
    "overlord/algorithm-2": "single_images:algorithm_2",
    "overlord/table-1": "end_to_end:table_1",
    "overlord/figure-12": "end_to_end:figure_12",
    "overlord/figure-14": "constructors:figure_14",
    "pool_sort/sort-and-shuffle": "tables:sort_and_shuffle",
    "pool_sort/pool-size": "tables:pool_sizes",
    "pool_sort/workers": "tables:workers",
}
"""CHAPTER/KEY -> module of the chapter's package, and the function in it that takes the seed and
returns an `Outcome`."""
SLOW = {
    "odb/table-3",
    "odb/table-4",
    "odb/tables-13-14",
    "odb/table-19",
    "odb/table-20",
    "wlb/figures-6-16",
    "wlb/figure-7",
    "wlb/ranks",
    "wlb/solver",
    "wlb/figure-15",
    "overlord/figures-4-5",
    "overlord/algorithm-2",
    "overlord/figure-14",
}
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


def outcome_of(name: str, seed: int) -> Outcome:
    module, function = RUNS[name].split(":")
    path = f"benchmarks.papers.{name.split('/')[0]}.{module}"
    outcome: Outcome = getattr(import_module(path), function)(seed)
    return outcome


def write(name: str, outcome: Outcome) -> None:
    """Puts the paper's figure and evenstep's into the entry's row of the page."""
    lines = PAGE.read_text().split("\n")
    for number, line in enumerate(lines):
        if line.endswith(f" | {name} |"):
            cells = line.split(" | ")
            cells[1:3] = outcome.paper, outcome.ours
            lines[number] = " | ".join(cells)
    PAGE.write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python -m benchmarks.papers.book --run odb/table-17"
    )
    parser.add_argument("--run", nargs="*", metavar="CHAPTER[/KEY]", help="run these; all if empty")
    parser.add_argument("--fast", action="store_true", help="leave slow entries as they are")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.run is None:
        print("entries:", ", ".join(RUNS))
    for name in [] if options.run is None else chosen(options.run, options.fast):
        start = time.perf_counter()
        outcome = outcome_of(name, options.seed)
        write(name, outcome)
        seconds = time.perf_counter() - start
        print(f"{name}, {seconds:.1f} s\n\n{outcome.markdown()}\n", flush=True)


if __name__ == "__main__":
    main()
