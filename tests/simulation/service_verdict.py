"""What must be true of every life of the service, whatever was killed, stopped or late in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from service_settings import ServiceSetup
from simulated_service import ClientReport, CollectiveFailed, ServiceAttempt
from undisturbed_service import Undisturbed

from evenstep.errors import (
    CollateError,
    ConfigurationError,
    EvenstepError,
    LoaderDiedError,
    SampleError,
)

_PATIENCE = 40.0
"""Simulated seconds from the last fault to the error on every rank: several late messages."""
_SLOWNESS = ("stop", "delay")


def check_service(attempt: ServiceAttempt, expected: Sequence[Undisturbed]) -> str | None:
    """What is wrong with a life of the service that has come to its end, if anything is.

    Args:
        expected: [meshes] what comes if nothing fails, and no sample or batch is bad.
    """
    checks = (_ends, _causes, _steps, _nothing_left)
    return next((wrong for check in checks if (wrong := check(attempt, expected))), None)


def _ends(attempt: ServiceAttempt, expected: Sequence[Undisturbed]) -> str | None:
    for process in attempt.world.processes:
        if process.exit_code not in (0, -9):
            return f"{process.name} raised what is no error of evenstep's:\n{process.error}"
    for actor in attempt.cluster.actors:
        if actor.process.exit_code != -9:
            return f"{actor.process.name} outlives the service"
    last = max((when for _, when in attempt.injected), default=0.0)
    if attempt.settings.astray is not None:  # those who waited until then hear that a role has gone
        last = max(last, attempt.closed_at or 0.0)
    for report in attempt.reports:
        late = report.ended_at > last + attempt.stopped + _PATIENCE
        if isinstance(report.error, LoaderDiedError) and late:
            return f"rank {report.rank} heard at {report.ended_at} of what happened at {last}"
    return None


def _causes(attempt: ServiceAttempt, expected: Sequence[Undisturbed]) -> str | None:
    """An error has a cause, and is of the right kind. That a role dies or is cut off is none."""
    run, setup = attempt.settings, attempt.setup
    grave = [what for what, _ in attempt.injected if not what.startswith(_SLOWNESS)]
    of_service = [what for what in grave if what.startswith("kill service")]
    stopped = len(grave) < len(attempt.injected)
    caused = of_service or setup.fails or run.closes is not None or run.astray is not None
    error = attempt.service_error
    if error is not None and not (of_service or stopped or setup.fails):
        return f"the service raised, and nothing had failed: {error!r}"
    for report in attempt.reports:
        error = report.error
        outside = report.rank not in attempt.taking[report.mesh]
        if error is None or (outside and "is not kept" in str(error)):  # who only looks in is late
            continue
        if isinstance(error, CollectiveFailed):
            if grave or caused:
                continue
            return f"rank {report.rank} lost another one, and nothing had failed"
        if not caused:
            return f"rank {report.rank} raised, and nothing had failed: {error!r}"
        if isinstance(error, (SampleError, CollateError)) and not setup.fails:
            return f"rank {report.rank} raised {error!r}"
        if type(error) is ConfigurationError and not _is_right(attempt, report, str(error)):
            return f"rank {report.rank} raised {error!r}"
    if setup.fails and not grave and run.closes is None:
        return _all_fail(attempt, setup)
    return None


def _is_right(attempt: ServiceAttempt, report: ClientReport, error: str) -> bool:
    if "common_state() was called" in error:
        return attempt.settings.astray is not None
    # The service failed before the rank could find it.
    return not report.steps and ("no job named" in error or "no Ray cluster" in error)


def _all_fail(attempt: ServiceAttempt, setup: ServiceSetup) -> str | None:
    """What cannot be made is an error on every rank or, if it was not needed, on none. That a batch
    cannot be made may be known only once the ranks of other groups have had all their steps."""
    if setup.bad_batch is not None and not attempt.settings.lockstep:
        return None
    last = attempt.reports[-1].life
    reports = [r for r in attempt.reports if r.life == last and r.rank in attempt.taking[r.mesh]]
    failed = [isinstance(report.error, EvenstepError) for report in reports]
    if any(failed) and any(report.finished for report in reports):
        return "some ranks end without an error, and others fail"
    return None


def _steps(attempt: ServiceAttempt, expected: Sequence[Undisturbed]) -> str | None:
    """Every rank gets the steps that come undisturbed, one after another, and saves their states;
    and of what has ended, all of them."""
    begins = {0: attempt.first}
    for report in attempt.reports:
        rank, of_mesh = report.rank, expected[report.mesh]
        heard = report.changed and attempt.changed_at is not None
        if heard and rank in attempt.taking[report.mesh]:
            last = report.steps[-1].step + 1 if report.steps else attempt.first
            if last != attempt.changed_at:
                return f"rank {rank} ends at step {last}: the mesh changes at {attempt.changed_at}"
        if report.steps:
            begin = begins.setdefault(report.life, report.steps[0].step)
            if begin != report.steps[0].step:
                return f"rank {rank} begins with step {report.steps[0].step}, another with {begin}"
        for number, taken in enumerate(report.steps):
            if taken.step != begins[report.life] + number:
                return f"rank {rank} goes to step {taken.step} after {number} steps"
            alone = of_mesh.steps.get((rank, taken.step))
            if alone != taken:
                return f"rank {rank} got {taken}, and {alone} undisturbed"
        for step, state in report.saved.items():
            wanted = of_mesh.states.get(step)
            if wanted is None:
                return f"rank {rank} saved at step {step}, which does not come undisturbed"
            differs = _difference(state, wanted)
            if step == attempt.changed_at:  # it may be the state with which the next mesh begins
                others = [each.states.get(step) for each in expected if each is not of_mesh]
                same = [_difference(state, each) is None for each in others if each is not None]
                differs = None if any(same) else differs
            if differs is not None:
                return f"rank {rank} saved another state at step {step}: {differs}"
        if report.finished and rank in attempt.taking[report.mesh]:
            last = report.steps[-1].step + 1 if report.steps else of_mesh.end
            if last != of_mesh.end:
                return f"rank {rank} ended at step {last}, and step {of_mesh.end} is the end"
    return None


def _difference(state: str, wanted: str) -> str | None:
    """Where states differ, but for the job, in which something may be slow or bad."""
    found, undisturbed = json.loads(state), json.loads(wanted)
    for name in sorted(undisturbed.keys() - {"job"}):
        if found[name] != undisturbed[name]:
            return f"{name} is {found[name]}, and {undisturbed[name]} undisturbed"
    return None


def _nothing_left(attempt: ServiceAttempt, expected: Sequence[Undisturbed]) -> str | None:
    """When all ranks have had all, and only then are roles asked how they are, no role holds
    samples for them, unless a constructor that has died has left some behind. A rank that comes to
    its end has the last steps released, so before that they are held."""
    run = attempt.settings
    regular = attempt.status and all(
        report.finished and report.ended_at <= attempt.status_at for report in attempt.reports
    )
    constructors = attempt.status.get("constructors", [])
    if run.late or any("silent_seconds" in each for each in constructors):
        return None  # what is said may be old
    if any(what.startswith("kill constructor") for what, _ in attempt.injected):
        return None
    if not regular or run.lives > 1 or run.repeats or attempt.setup.fails:
        return None
    for loader in attempt.status["loaders"]:
        if loader.get("staged_samples"):
            return f"loader {loader['loader']} keeps samples of steps {loader['staged_steps']}"
    others = len(attempt.reports) > len(attempt.taking)  # they only look whether there is a step
    for constructor in constructors:
        if constructor.get("steps") and not others:
            return f"the constructor of {constructor['buckets']} keeps steps {constructor['steps']}"
    return None
