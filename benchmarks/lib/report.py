"""What the benchmarks share: spreads, the machine they ran on, and how results are printed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np

PEER = "online-dynamic-batching"
Case = TypeVar("Case", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """Median of repeated measurements, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = np.percentile(np.asarray(values, np.float64), [10, 50, 90])
        return cls(float(median), float(low), float(high))

    def text(self, digits: int) -> str:
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f}-{self.high:,.{digits}f})"


def parser(description: str, example: str, *, repeats: int) -> argparse.ArgumentParser:
    """Arguments that every benchmark has."""
    result = argparse.ArgumentParser(
        description=description,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--repeats", type=int, default=repeats, help="measurements of each case")
    result.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    result.add_argument("--seed", type=int, default=0, help="decides the lengths")
    return result


def machine() -> dict[str, Any]:
    return {
        "system": platform.platform(terse=True),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in ("evenstep", "torch", "numpy", PEER) if _known(name)},
    }


def _known(name: str) -> bool:
    try:
        version(name)
    except ImportError:
        return False
    return True


def progress(text: str) -> None:
    """A line on stderr that the next one overwrites; nothing where stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def in_turn(
    cases: Iterable[Case], repeats: int, run: Callable[[Case], Result]
) -> dict[Case, list[Result]]:
    """Measures every case several times. Cases take turns, so that all see the same machine."""
    runs: dict[Case, list[Result]] = {case: [] for case in cases}
    for repeat in range(repeats):
        for case, found in runs.items():
            progress(f"{case}, {repeat + 1}/{repeats}")
            found.append(run(case))
    progress("")
    return runs


def spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of each figure."""
    return {name: Spread.of([run[name] for run in runs]) for name in runs[0]}


@dataclass(frozen=True)
class Table:
    """Cells as they are printed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        """The first column to the left and the others to the right; above it the title."""
        table = [list(self.columns), *map(list, self.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        rule = [("-" * w) if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
        aligned = [
            [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
            for line in [table[0], rule, *table[1:]]
        ]
        lines = "\n".join(f"| {' | '.join(line)} |" for line in aligned)
        return f"{self.title}:\n\n{lines}" if self.title else lines


def show(*tables: Table, as_json: bool) -> None:
    """Prints what a benchmark has found: tables, or one JSON object with the same cells."""
    progress("")
    if not as_json:
        print("\n\n".join(table.markdown() for table in tables))
        return
    found = [
        {"title": t.title, "rows": [dict(zip(t.columns, row)) for row in t.rows]} for t in tables
    ]
    print(json.dumps({"tables": found, "machine": machine()}, indent=2))
