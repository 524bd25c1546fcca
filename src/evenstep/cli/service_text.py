"""Status and plans of the service, printed for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenstep.cli.output import note, print_table

if TYPE_CHECKING:
    from evenstep.strategy import LoadingPlan


def print_status(status: Mapping[str, Any]) -> None:
    """Prints the status of a job as a table."""
    steps, planner = status["steps"], status["planner"]
    rows = {
        "state": "failed" if status["failed"] else "ended" if status["ended"] else "running",
        "mesh": ", ".join(f"{axis}={size}" for axis, size in status["mesh"].items()),
        "steps planned": f"{planner.get('step', 0):,}",
        "trainers": f"{len(status['clients']):,}, {_reached(status)}",
    }
    if steps["steps"]:
        exposed = steps["exposed_seconds"]
        rows["exposed wait per step"] = (
            f"{exposed['mean']:.3f} s mean, {exposed['p95']:.3f} p95, {exposed['first']:.2f} first"
        )
        stages = steps["stage_seconds"].items()
        rows["time per stage of a step"] = ", ".join(f"{name} {s:.3f} s" for name, s in stages)
        rows["imbalance"] = f"{steps['imbalance']:.3f}, {steps['imbalance_before']:.3f} before"
    if status["restarts"]:
        rows["roles restarted"] = f"{len(status['restarts'])}, the latest:"
        rows[""] = restart_text(status["restarts"][-1])
    if status["standbys"]:
        ready = sum(standby["ready"] for standby in status["standbys"])
        rows["standby loaders"] = f"{ready} of {len(status['standbys'])} ready"
    rows["queued samples"] = f"{_queued(status):,}"
    for path, count in status["bytes"].items():
        rows[f"bytes {path.replace('_', ' ')}"] = f"{count:,}"
    for source, count in sorted(planner.get("drawn", {}).items(), key=lambda each: -each[1])[:12]:
        rows[f"drawn from {source}"] = f"{count:,}"
    if len(planner.get("drawn", {})) > 12:
        rows["drawn from others"] = f"{len(planner['drawn']) - 12:,} sources, see --json"
    print_table(f"job {status['name']}", rows)
    if status["failed"]:
        note(str(status["failed"]))
    from evenstep.service.registry.role_status import wait_text

    for text in [*status["silent"], *map(wait_text, status["waits"])]:
        note(text)


def restart_text(restart: Mapping[str, Any]) -> str:
    """One of the status's `restarts`, as a line."""
    died, found = restart["died"], restart["followed_by"]
    kind = "standby" if restart["promoted"] else "process"
    return (
        f"{restart['role']} (process {died['process']} on {died['host']}) died; {kind} "
        f"{found['process']} on {found['host']} replaced it after {restart['seconds']:.1f} s"
    )


def _reached(status: Mapping[str, Any]) -> str:
    steps = [client["step"] for client in status["clients"]]
    if not steps:
        return "none yet"
    return f"at step {min(steps):,}" + (f" to {max(steps):,}" if max(steps) > min(steps) else "")


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
                + "".join(f"; {text}" for text in status["silent"])
                + "".join(f"; {text}" for text in status["restarting"])
            )

        yield show
