"""Histories of a service: drawn from a seed, played and judged."""

from __future__ import annotations

import dataclasses
import functools
import gc
import random
from collections import Counter
from typing import Any

from histories import Choices, History, Played
from processes import Fault
from service_settings import MESHES, ServiceRun, ServiceSetup
from service_verdict import check_service
from simulated_service import ServiceAttempt
from undisturbed_service import Undisturbed, undisturbed

KINDS = (*["kill"] * 4, "stop", "stop", "delay", "cut", "cut")


class ServiceHistory(History):
    def play(self) -> Played:
        played, choices, setup = Played(), Choices(self.seed), self.setup
        state: str | None = None
        trained: Counter[tuple[int, int]] = Counter()
        finished = False
        quiet = dataclasses.replace(
            self.runs[-1],
            faults=(),
            lives=1,
            closes=None,
            astray=None,
            repeats=False,
            changes=(),
            remesh=None,
        )
        for run in (*self.runs, quiet):
            expected = service_reference(setup, run.mesh, state)
            references = [expected]
            if run.remesh is not None:
                references.append(service_reference(setup, run.remesh[1], state, run.mesh))
            attempt = ServiceAttempt(
                setup, run, choices, state, [each.taking for each in references]
            )
            played.violation = attempt.run()
            reports = [r for r in attempt.reports if r.rank in attempt.taking[r.mesh]]
            if attempt.changed_at is not None and run.remesh is not None:
                state = expected.states[attempt.changed_at]
                references[1] = service_reference(setup, run.remesh[1], state, run.mesh)
                expected = references[attempt.reports[-1].mesh]
            played.add(attempt.injected, reports)
            played.faults["repeat"] += attempt.cluster.repeated
            if played.violation is None:
                played.violation = check_service(attempt, references)
            if played.violation is not None:
                break
            step = attempt.checkpoint()
            latest = [report for report in reports if report.life == reports[-1].life]
            finished = all(report.finished for report in latest) if latest else True
            end = expected.end if finished else step
            for taken in _trained(attempt, end):
                trained.update(taken.positions)
            if finished:
                break
            if step is not None:
                state = attempt.saved_state(step)
            del attempt, reports, latest
        if played.violation is None:
            played.violation = _audit(self, trained, finished, expected)
        played.choices = tuple(choices.made)
        gc.collect()
        return played


def service_history_of(seed: int) -> ServiceHistory:
    draw = random.Random(seed)
    setup = ServiceSetup(
        sizes=draw.choice([(17, 9), (20,), (11, 13, 8), (26, 15)]),
        samples_per_step=draw.choice([4, 6, 6, 8]),
        stop=draw.choice(["all_exhausted", "all_exhausted", "first_exhausted", "all_repeated"]),
        follows=draw.random() < 0.3,
        broadcast=draw.random() < 0.5,
        prefetch=draw.choice([0, 1, 2, 2, 3]),
        error=draw.choice(["raises", "raises", "exits"]),
    )
    if draw.random() < 0.25:
        source = draw.randrange(len(setup.sizes))
        sample = 1000 * source + draw.randrange(setup.sizes[source])
        what = draw.choice(["bad_sample", "bad_batch", "bad_step"])
        number = draw.randrange(6) if what == "bad_step" else sample
        setup = dataclasses.replace(setup, **{what: number})
    elif draw.random() < 0.2:
        setup = dataclasses.replace(setup, packed=True)
    runs: list[ServiceRun] = []
    for _ in range(draw.choice([1, 1, 2, 2, 3])):
        same = runs and draw.random() < 0.5
        runs.append(_run_of(draw, setup, runs[-1].mesh if same else draw.choice(list(MESHES))))
    if seed % 2:
        runs = [_with_standbys(run, random.Random(f"{seed} {n}")) for n, run in enumerate(runs)]
    if seed % 3 == 0:
        runs = [_changing(run, random.Random(f"{seed} changes {n}")) for n, run in enumerate(runs)]
    if seed % 5 == 2 and not setup.follows:
        kept = random.Random(f"{seed} kept").choice([1, 2, 3])
        setup = dataclasses.replace(setup, plans_kept=kept)
        runs = [_apart(run) for run in runs]
    return ServiceHistory(setup, tuple(runs), seed)


def by_policy(history: ServiceHistory, name: str) -> ServiceHistory:
    """The same history of a job that a policy plans."""
    packed = history.setup.packed and name != "pool-sort"
    setup = dataclasses.replace(history.setup, policy=name, bad_step=None, packed=packed)
    return dataclasses.replace(history, setup=setup)


def _changing(run: ServiceRun, draw: random.Random) -> ServiceRun:
    """With other loaders in the middle of it, and perhaps another mesh."""
    changes = tuple(
        (draw.choice([0.01, 0.1, 0.5, 2.0]), draw.choice([1, 2, 3]))
        for _ in range(draw.choice([0, 1, 1, 2]))
    )
    run = dataclasses.replace(run, changes=changes)
    if draw.random() < 0.5 or run.astray is not None or run.closes is not None:
        return run
    # Trainers that are killed begin again where they have saved, perhaps before the other mesh.
    faults = tuple(each for each in run.faults if not each.process.startswith("rank"))
    size = MESHES[run.mesh].get("DP", 1)  # on a smaller mesh steps would draw more than they hold
    meshes = [name for name, sizes in MESHES.items() if sizes.get("DP", 1) >= size]
    remesh = draw.choice([0.01, 0.1, 0.5, 2.0]), draw.choice(meshes)
    return dataclasses.replace(run, remesh=remesh, faults=faults, lives=1, leaves=None)


def _apart(run: ServiceRun) -> ServiceRun:
    """In which nothing but what the service does for it holds the ranks together."""
    alone = {"lives": 1, "leaves": None, "astray": None, "remesh": None}
    return dataclasses.replace(run, lockstep=False, begins=True, saves=1000, slow=True, **alone)


def _run_of(draw: random.Random, setup: ServiceSetup, mesh: str) -> ServiceRun:
    run = ServiceRun(
        mesh=mesh,
        loaders=draw.choice([1, 1, 2, 3]),
        constructors=draw.choice([None, None, 1]),
        stripe=draw.choice([2, 3, 64]),
        buffer_size=(draw.choice([1, 4, 16]), draw.choice("abc"))[0],  # as seeds draw it
        saves=draw.choice([1, 2, 2, 3]),
        lives=draw.choice([1, 1, 2, 3]),
        leaves=draw.choice([None, 1, 2, 4]),
        astray=draw.randrange(2) if draw.random() < 0.08 else None,
        closes=draw.choice([0.05, 0.2, 1.0, 5.0]) if draw.random() < 0.1 else None,
        # What is reported has an order only if ranks wait for each other.
        lockstep=setup.follows or draw.random() < 0.5,
        slow=draw.random() < 0.5,
        late=draw.random() < 0.6,
        repeats=draw.random() < 0.3,
    )
    faults = tuple(_fault_of(draw, run) for _ in range(draw.choice([0, 1, 1, 1, 2, 3])))
    return dataclasses.replace(run, faults=faults)


def _with_standbys(run: ServiceRun, draw: random.Random) -> ServiceRun:
    """A run in which standbys may follow loaders, and loaders die the more."""
    if run.astray is not None or draw.random() < 0.6:
        return run
    roles = ["standby-0", *[f"loader-{n}" for n in range(run.loaders)]]
    steps = [int(2 ** draw.uniform(0, 8)) for _ in range(draw.choice([1, 1, 2, 3]))]
    more = tuple(Fault(draw.choice(["kill", "kill", "stop"]), draw.choice(roles), s) for s in steps)
    more = tuple(dataclasses.replace(f, seconds=2.0) if f.kind == "stop" else f for f in more)
    return dataclasses.replace(run, standbys=draw.choice([1, 1, 2]), faults=(*run.faults, *more))


def _fault_of(draw: random.Random, run: ServiceRun) -> Fault:
    sizes = MESHES[run.mesh]
    groups = sizes.get("DP", 1)
    ranks = groups * sizes.get("CP", 1) * sizes.get("TP", 1) * sizes.get("PP", 1)
    clients = [f"rank{rank}.{life}" for rank in range(ranks) for life in range(run.lives)]
    constructors = [f"constructor-{n}" for n in range(run.constructors or groups)]
    loaders = [f"loader-{n}" for n in range(run.loaders)]
    roles = [*loaders, "planner", *constructors, "registry"]
    kind = draw.choice(KINDS)
    process = draw.choice([*roles, draw.choice(clients), draw.choice(clients), "service"])
    other = ""
    if kind == "cut":
        process, callees = draw.choice(
            [
                ("planner", loaders),
                (draw.choice(constructors), [*loaders, "planner"]),
                (draw.choice(clients), [*constructors, "planner", "registry"]),
                ("registry", roles[:-1]),
            ]
        )
        other = draw.choice(callees)
    seconds = {"stop": draw.choice([0.3, 2.0, 30.0]), "delay": draw.choice([0.01, 0.3, 2.0])}
    step = int(2 ** draw.uniform(0, 8))
    return Fault(kind, process, step, seconds.get(kind, 0.0), other)


@functools.lru_cache(maxsize=4096)
def service_reference(
    setup: ServiceSetup, mesh: str, state: str | None, started_on: str | None = None
) -> Undisturbed:
    """What comes from a state on, where no sample or batch is bad; see `undisturbed`."""
    whole = dataclasses.replace(setup, bad_sample=None, bad_batch=None, bad_step=None)
    return undisturbed(whole, mesh, state, started_on)


def _trained(attempt: ServiceAttempt, end: int | None) -> list[Any]:
    """Steps before `end`, one for each bucket."""
    found = {
        (taken.step, taken.bucket): taken
        for report in attempt.reports
        for taken in report.steps
        if end is not None and taken.step < end
    }
    return list(found.values())


def _audit(
    history: ServiceHistory,
    trained: Counter[tuple[int, int]],
    finished: bool,
    expected: Undisturbed,
) -> str | None:
    again = [position for position, count in trained.items() if count > 1]
    if again:
        return f"samples that come again: {sorted(again)}"
    if history.setup.fails:
        return None
    if not finished:
        return "the last run, in which nothing goes wrong, does not reach the end"
    drawn = {
        (number, position)
        for number, count in enumerate(expected.drawn.values())
        for position in range(count)
    }
    if extra := trained.keys() - drawn:
        return f"samples that were never drawn: {sorted(extra)}"
    if len(lost := drawn - trained.keys()) != expected.left_over:
        return f"samples that are lost: {sorted(lost)}, and {expected.left_over} are left over"
    return None
