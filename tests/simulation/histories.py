"""Histories: drawn from a seed, played, judged, and written as text from which they play again."""

from __future__ import annotations

import base64
import dataclasses
import functools
import gc
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from choices import Choices
from job_settings import POLICIES, Run, Setup
from process_faults import Fault
from simulated_job import Attempt
from verdict import check_attempt

KINDS = (*["kill"] * 6, "stop", "stop", "delay", "delay", "sends", "receives", "start")


@dataclass(frozen=True)
class History:
    setup: Setup
    runs: tuple[Run, ...]
    seed: int | None = None
    given: tuple[int, ...] | None = None
    """The choices; drawn by the seed when None."""

    def choices(self) -> Choices:
        return Choices(self.seed, self.given)

    def to_text(self) -> str:
        return as_text(self)

    @classmethod
    def from_text(cls, text: str) -> History:
        plain = from_text(text)
        runs = []
        for run in plain["runs"]:
            faults = tuple(Fault(**fault) for fault in run.pop("faults"))
            runs.append(Run(**run, faults=faults))
        given = plain["given"]
        return cls(
            Setup(**plain["setup"]),
            tuple(runs),
            plain["seed"],
            None if given is None else tuple(given),
        )

    def play(self) -> Played:
        return play(self)

    def plainer(self) -> Iterator[History]:
        """Simpler settings, with the choices as they are, for whatever they then mean."""
        runs = self.runs
        for number in range(len(runs)):
            if len(runs) > 1:
                yield dataclasses.replace(self, runs=runs[:number] + runs[number + 1 :])
        for number, run in enumerate(runs):
            changes = [
                {"faults": run.faults[:i] + run.faults[i + 1 :]} for i in range(len(run.faults))
            ]
            changes += [
                {"leaves": None},
                {"slow": False},
                {"heavy": False},
                {"threads": 1},
                {"persistent": False},
            ]
            changes += [{"ranks": run.ranks - 1}] if run.ranks > 1 else []
            changes += [{"workers": run.workers - 1}] if run.workers > 1 else []
            changes += [{"capacity": 1 << 16}, {"deaf": False}, {"timeout": 0.0}, {"prefetch": 2}]
            for change in changes:
                changed = dataclasses.replace(run, **change)
                if changed != run:
                    yield dataclasses.replace(
                        self, runs=(*runs[:number], changed, *runs[number + 1 :])
                    )
        setup = self.setup
        for change in (
            {"epochs": 1},
            {"samples": 12},
            {"accumulate": 1},
            {"policy": "fixed"},
            {"shuffle": False},
            {"iterable": None},
            {"context": 1},
            {"bad_sample": None},
            {"bad_batch": None},
            {"bad_order": None},
        ):
            changed = dataclasses.replace(setup, **change)
            if changed != setup:
                yield dataclasses.replace(self, setup=changed)


def as_text(history: Any) -> str:
    plain = dataclasses.asdict(history)
    return base64.b85encode(zlib.compress(json.dumps(plain).encode(), 9)).decode()


def from_text(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b85decode(text)))


@dataclass
class Played:
    """What came of a history."""

    violation: str | None = None
    choices: tuple[int, ...] = ()
    scheduled: int = 0
    """Steps of the scheduler."""
    trained: int = 0
    """Training steps of all ranks."""
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)


def history_of(seed: int) -> History:
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
    return History(setup, tuple(runs), seed)


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
def reference(setup: Setup, ranks: int, workers: int) -> list[list[Any]]:
    """Every rank's steps where nothing fails but what the setup says, and nobody is interrupted."""
    run = Run(ranks=ranks, workers=workers)
    attempt = Attempt(setup, run, Choices(given=()), [], merged=False)
    if (violation := attempt.world.run()) is not None:
        raise Violation(f"undisturbed, {violation}")
    return [report.steps for report in attempt.reports]


def play(history: History) -> Played:
    """Plays a history to the end of the job: after its runs comes one where nothing goes wrong."""
    played, choices, setup = Played(), history.choices(), history.setup
    states: list[str] = []
    known: dict[Any, Any] = {}  # what each rank has received at a step, since ranks changed
    trained: Counter[tuple[int, int]] = Counter()
    last, ranks, dealt_anew = history.runs[-1], 0, False
    quiet = dataclasses.replace(last, faults=(), leaves=None, timeout=0.0)
    for run in (*history.runs, quiet):
        merged = bool(states) and (
            len(states) != run.ranks or (setup.iterable is None and choices.pick(4, dull=0.7) > 0)
        )
        if merged or dealt_anew or run.ranks != ranks:
            known, ranks = {}, run.ranks
        attempt = Attempt(setup, run, choices, states, merged=merged)
        played.violation = attempt.world.run()
        reports = attempt.reports
        played.scheduled += attempt.world.steps
        played.trained += sum(len(report.steps) for report in reports)
        played.faults.update(what.partition(" ")[0] for what, _ in attempt.injected)
        played.errors.update(type(r.error).__name__ for r in reports if r.error is not None)
        if played.violation is None:
            try:
                # The order of an iterable dataset depends on its workers, and nothing else does.
                workers = run.workers if setup.iterable is not None else 0
                expected = None if states else reference(setup, run.ranks, workers)
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


def describe(history: Any, played: Played) -> str:
    return "\n".join(
        [
            f"seed {history.seed}: {history.setup}",
            *(f"  {run}" for run in history.runs),
            f"{len(played.choices)} choices, of which {sum(map(bool, played.choices))} are not 0",
            str(played.violation),
            f"play it again: python -m replay {history.to_text()!r}",
        ]
    )
