"""Histories of the loader: drawn from a seed, played and judged."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
from collections import Counter
from typing import Any

from histories import Choices, History, Played
from loader_settings import POLICIES, Run, Setup
from loader_verdict import check_attempt
from processes import Fault
from simulated_job import Attempt

KINDS = (*["kill"] * 6, "stop", "stop", "delay", "delay", "sends", "receives", "start")


class LoaderHistory(History):
    def play(self) -> Played:
        played, choices, setup = Played(), Choices(self.seed), self.setup
        states: list[str] = []
        known: dict[Any, Any] = {}  # what each rank has received at a step, since ranks changed
        trained: Counter[tuple[int, int]] = Counter()
        last, ranks, dealt_anew = self.runs[-1], 0, False
        quiet = dataclasses.replace(last, faults=(), leaves=None, timeout=0.0)
        for run in (*self.runs, quiet):
            merged = bool(states) and (
                len(states) != run.ranks
                or (setup.iterable is None and choices.pick(4, dull=0.7) > 0)
            )
            if merged or dealt_anew or run.ranks != ranks:
                known, ranks = {}, run.ranks
            attempt = Attempt(setup, run, choices, states, merged=merged)
            played.violation = attempt.world.run()
            reports = attempt.reports
            played.add(attempt.injected, reports)
            if played.violation is None:
                try:
                    # The order of an iterable dataset depends on its workers; nothing else does.
                    workers = run.workers if setup.iterable is not None else 0
                    expected = None if states else loader_reference(setup, run.ranks, workers)
                    played.violation = check_attempt(attempt, known, expected)
                except Violation as violation:
                    played.violation = str(violation)
            if played.violation is not None:
                break
            finished = all(report.finished for report in reports)
            complete = set.intersection(*(set(report.saved) for report in reports))
            # Unless it has saved, the next run may resume from what was there before it was merged.
            dealt_anew = merged and not complete
            if complete:
                number = max(complete)
                reports = reports[:: setup.context]
                states = [report.saved[number][0] for report in reports]
                for report in reports:
                    for epoch, _, indices, _ in report.steps[: report.saved[number][1]]:
                        trained.update((epoch, index) for index in indices)
            del attempt, reports
            if finished:
                break
        if played.violation is None:
            played.violation = _audit(setup, trained, finished)
        played.choices = tuple(choices.made)
        gc.collect()
        return played


def loader_history_of(seed: int) -> LoaderHistory:
    draw = random.Random(seed)
    setup = Setup(
        policy=draw.choice(list(POLICIES)),
        samples=draw.choice([12, 24, 24, 36]),
        epochs=draw.choice([1, 1, 2]),
        buffer_size=draw.choice([3, 6, 12]),
        accumulate=draw.choice([1, 1, 2]),
        chunk_size=draw.choice([1, 2, 3]),
        shuffle=draw.random() < 0.7,
        error=draw.choice(["raises", "raises", "exits", "cancels"]),
    )
    if draw.random() < 0.3:
        what = draw.choice(["bad_sample", "bad_sample", "bad_batch", "bad_order"])
        number = draw.randrange(setup.samples)
        skips = 1 if what == "bad_sample" and draw.random() < 0.4 else 0
        setup = dataclasses.replace(setup, skips=skips, **{what: number})
    fixed: dict[str, Any] = {}
    kinds = random.Random(f"kind {seed}")  # on its own: other histories are as they always were
    kind = kinds.random()
    if kind < 0.15:
        fixed = {"ranks": kinds.choice([1, 2, 3]), "workers": kinds.choice([0, 1, 2, 2])}
        how = kinds.choice(["replay", "dataset", "dataset", "iterator"])
        # Small windows, so that states are in the middle of what the workers yield.
        setup = dataclasses.replace(setup, samples=36, buffer_size=3, iterable=how)
        setup = dataclasses.replace(setup, shuffle=False, skips=0, bad_order=None)
    elif kind < 0.25:
        # Tensors would be in memory that processes share, which is not simulated.
        fixed = {"workers": 0, "heavy": False}
        setup = dataclasses.replace(setup, context=2, accumulate=1, bad_batch=None)
    runs: list[Run] = []
    for _ in range(draw.choice([1, 2, 2, 3])):
        same = runs and draw.random() < 0.5
        ranks = runs[-1].ranks if same else draw.choice([1, 2, 2, 2, 3, 4])
        if setup.context > 1:
            ranks = min(ranks, 2)
        deaf = random.Random(f"deaf {seed}").random() < 0.3
        where: dict[str, Any] = {
            "deaf": deaf,
            "apart": kinds.random() < 0.3,
            "stays": kinds.choice([0.0, 0.0, 1.0, 10.0]),
        }
        runs.append(_run_of(draw, setup, **{"ranks": ranks, **fixed, **where}))
    return LoaderHistory(setup, tuple(runs), seed)


def _run_of(
    draw: random.Random, setup: Setup, ranks: int, workers: int | None = None, **fixed: Any
) -> Run:
    workers = draw.choice([0, 0, 1, 2]) if workers is None else workers
    processes = ranks * setup.context
    leaves = draw.randrange(1, 8) if draw.random() < 0.3 else None
    run = Run(
        ranks=ranks,
        workers=workers,
        prefetch=draw.choice([1, 2, 4]),
        threads=draw.choice([1, 1, 2]),
        persistent=draw.random() < 0.5,
        method=draw.choice(["fork", "spawn"]),
        capacity=draw.choice([64, 1000, 1 << 16]),
        heavy=draw.random() < 0.3,
        saves=draw.choice([1, 2, 3]),
        leaves=leaves,
        who_leaves=draw.randrange(processes) if draw.random() < 0.2 else None,
        how=draw.choice(["break", "close", "drop", "again", "again"]),
        timeout=draw.choice([0.0, 0.0, 3.0]) if workers else 0.0,
        slow=draw.random() < 0.5,
    )
    if run.who_leaves is not None and run.how == "again":
        run = dataclasses.replace(run, how="break")
    run = dataclasses.replace(run, **fixed)
    faults = tuple(_fault_of(draw, run, processes) for _ in range(draw.choice([0, 1, 1, 1, 2, 3])))
    if any(fault.kind == "receives" for fault in faults):
        # What a process without memory has to say is less than a real pipe holds.
        run = dataclasses.replace(run, capacity=1 << 16)
    return dataclasses.replace(run, faults=faults)


def _fault_of(draw: random.Random, run: Run, processes: int) -> Fault:
    process = f"rank{draw.randrange(processes)}"
    if run.workers and draw.random() < 0.7:
        process += ".batcher"
        if draw.random() < 0.4:
            process += f".worker{draw.randrange(run.workers)}"
    kind = draw.choice(KINDS)
    seconds = {"stop": draw.choice([0.3, 2.0, 30.0]), "delay": draw.choice([0.01, 0.3, 2.0])}
    step = int(2 ** draw.uniform(0, 9.5))
    return Fault(kind, process, step, seconds.get(kind, 0.0))


class Violation(Exception):
    pass


@functools.lru_cache(maxsize=4096)
def loader_reference(setup: Setup, ranks: int, workers: int) -> list[list[Any]]:
    """Every rank's steps where nothing fails but what the setup says, and nobody is interrupted."""
    run = Run(ranks=ranks, workers=workers)
    attempt = Attempt(setup, run, Choices(), [], merged=False)
    if (violation := attempt.world.run()) is not None:
        raise Violation(f"undisturbed, {violation}")
    return [report.steps for report in attempt.reports]


def _audit(setup: Setup, trained: Counter[tuple[int, int]], finished: bool) -> str | None:
    wanted = Counter(
        (epoch, index)
        for epoch in range(setup.epochs)
        for index in range(setup.samples)
        if index != setup.bad_sample
    )
    if extra := trained - wanted:
        return f"samples that come again: {sorted(extra)}"
    if setup.fails:
        return "the job ends, and cannot" if finished else None
    if not finished:
        return "the last run, in which nothing goes wrong, does not reach the end"
    if lost := wanted - trained:
        return f"samples that are lost: {sorted(lost)}"
    return None
