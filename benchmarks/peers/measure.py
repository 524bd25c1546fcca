"""Figures of a peer: speed, resume in mid-epoch, and what follows when a worker dies."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.peers.data import samples_of
from benchmarks.peers.jobs import AT, Job, Outcome

Figures = dict[str, Any]


def speed(name: str, workload: str, ranks: int, quick: bool) -> Figures:
    """
    samples_per_s   of all ranks, from a quarter of the epoch to three quarters
    cpu_ms          processor time of a sample, of all processes, over the same time
    first_s         from the start of the processes to the first batch of the last rank
    peak_mib        PSS of all processes
    padding, imbalance, steps   where there are tokens; imbalance is of padded tokens of a step
    """
    outcome = Job(name, workload, ranks, quick=quick).end()
    if problem := problem_of(outcome):
        return {"error": problem}
    samples = sum(len(record["ids"]) for record in outcome.records)
    begins, ends = zip(*(record["marks"] for record in outcome.records))
    counts = [end[1] - begin[1] for begin, end in zip(begins, ends)]
    rates = [n / (end[0] - begin[0]) for n, begin, end in zip(counts, begins, ends)]
    found: Figures = {
        "samples_per_s": sum(rates),
        "cpu_ms": 1000 * (ends[0][2] - begins[0][2]) / sum(counts),
        "first_s": max(record["first"] for record in outcome.records) - outcome.begun,
        "peak_mib": outcome.peak / 2**20,
        "samples": samples,
        "missed": missed(workload, quick, *outcome.records)["lost"],
    }
    steps = [record["steps"] for record in outcome.records]
    if steps[0]:
        real, padded = (sum(step[k] for own in steps for step in own) for k in (0, 1))
        found["padding"] = 1 - real / padded
        found["steps"] = [len(own) for own in steps]
    if steps[0] and ranks > 1:
        loads = [[own[1] for own in together] for together in zip(*steps)]
        found["imbalance"] = ranks * sum(map(max, loads)) / sum(map(sum, loads))
    return found


def problem_of(outcome: Outcome) -> str:
    """Why a job gave no figures; empty if it did."""
    if outcome.hung:
        return "it hangs"
    if not outcome.error and any(not record["ids"] for record in outcome.records):
        return "a rank got no batch"
    return outcome.error


def missed(workload: str, quick: bool, *records: dict[str, Any]) -> dict[str, int]:
    """Samples of an epoch that did not come, and how many came again."""
    came = Counter(number for record in records for number in set(record["ids"]))
    again = sum(len(record["ids"]) - len(set(record["ids"])) for record in records)
    return {
        "lost": samples_of(workload, quick) - len(came),
        "repeated": sum(count - 1 for count in came.values()) + again,
    }


def resume(name: str, workload: str, ranks: int, quick: bool) -> Figures:
    """
    next_s      from the start of the new processes to their first batch
    lost, repeated    samples of the epoch, over both runs
    """
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "state")
        before = Job(name, workload, ranks, quick=quick, stop="save", at=AT, state=state).end()
        if problem := problem_of(before):
            return {"error": problem}
        after = Job(name, workload, ranks, quick=quick, restore=True, state=state).end()
    if problem := problem_of(after):
        return {"error": problem}
    next_s = max(record["first"] for record in after.records) - after.begun
    return {"next_s": next_s, **missed(workload, quick, *before.records, *after.records)}


def kill(name: str, workload: str, ranks: int, quick: bool) -> Figures:
    """
    outcome     error, hang, goes on, or no worker
    seconds     from the kill to the error
    lost, repeated    samples of the epoch, if it goes on
    """
    job = Job(name, workload, ranks, quick=quick, stop="wait", at=AT)
    job.strike()
    outcome = job.end()
    found: Figures = {"killed": outcome.killed}
    if not outcome.struck:
        return {"error": problem_of(outcome)}
    if not outcome.killed:
        return {"outcome": "no worker"}
    if outcome.hung:
        return found | {"outcome": "hang"}
    if outcome.error:
        seconds = outcome.ended - outcome.struck
        return found | {"outcome": "error", "seconds": seconds, "text": outcome.error[-300:]}
    return found | {"outcome": "goes on", **missed(workload, quick, *outcome.records)}


KINDS = {"speed": speed, "resume": resume, "kill": kill}
