"""The output of commands.

One JSON object or a table goes to standard output, notes and progress to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one object on one line. Refuses NaN and infinity, which are not JSON."""
    print(json.dumps(values, allow_nan=False))


def print_table(title: str, rows: Mapping[str, str]) -> None:
    """Prints a table of two columns."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    Console(markup=False, emoji=False).print(table)  # names may hold brackets


def print_figures(
    title: str, figures: Mapping[str, Any], rows: Mapping[str, tuple[str, str]]
) -> None:
    """Prints a table of figures.

    Args:
        rows: by name, the key of a figure and its format. Rows without their figure are left out.
    """
    found = {name: f"{figures[key]:{form}}" for name, (key, form) in rows.items() if key in figures}
    print_table(title, found)


def note(text: str) -> None:
    """Prints a line for the reader, to standard error."""
    print(text, file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a function of (done, total), or None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


if TYPE_CHECKING:
    from evenstep.strategy import LoadingPlan


def restart_text(restart: Mapping[str, Any]) -> str:
    """One of the status's `restarts`, as a line."""
    died, found = restart["died"], restart["followed_by"]
    kind = "standby" if restart["promoted"] else "process"
    when = time.strftime("%H:%M:%S", time.localtime(restart["time"]))
    return (
        f"{restart['role']} (process {died['process']} on {died['host']}) died; {kind} "
        f"{found['process']} on {found['host']} replaced it at {when}"
    )


def _queued(status: Mapping[str, Any]) -> int:
    held = [sum(each.get("sources", {}).values()) for each in status["loaders"]]
    held += [each.get("staged_samples", 0) for each in status["loaders"]]
    return int(sum(held))


def print_plan(plan: LoadingPlan) -> None:
    """Prints a loading plan as a table."""
    rows = {
        "samples": f"{len(plan):,}",
        "carried to the next step": f"{len(plan.carried):,}",
        "buckets": f"{plan.buckets:,} at {plan.axis}, {plan.micro_batches} micro-batches each",
        "imbalance": f"{plan.imbalance:.3f}, {plan.imbalance_before:.3f} before",
    }
    for name, subplan in plan.subplans.items():
        rows[f"imbalance of {name}"] = (
            f"{subplan.imbalance:.3f}, {subplan.imbalance_before:.3f} before"
        )
    counts = zip(plan.samples.sources, plan.samples.counts().tolist())
    for source, count in sorted(counts, key=lambda each: -each[1])[:12]:
        rows[f"drawn from {source}"] = f"{count:,}"
    print_table(f"step {plan.step}", rows)


@contextmanager
def status_line() -> Iterator[Any]:
    """Yields a function that shows a status: in one line on a terminal, nowhere otherwise."""
    if not sys.stderr.isatty():
        yield lambda status: None
        return
    from rich.console import Console

    with Console(stderr=True).status("waiting for trainers") as line:

        def show(status: Mapping[str, Any]) -> None:
            steps = status["steps"]
            if not steps["steps"]:
                return
            line.update(
                f"step {steps['last_step']:,} of {len(status['clients'])} trainers, exposed wait "
                f"{steps['exposed_seconds']['last']:.3f} s, imbalance {steps['imbalance']:.3f}, "
                f"{_queued(status):,} samples queued"
                + "".join(f"; {name} does not answer" for name in status["silent"])
                + "".join(f"; {text}" for text in status["restarting"])
            )

        yield show
