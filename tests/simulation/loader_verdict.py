"""What must be true of every run, whatever was killed, stopped or refused in it."""

from __future__ import annotations

import re
from typing import Any

from loader_settings import Injected, Samples
from simulated_job import Attempt

from evenstep.errors import CollateError, LoaderDiedError, PeerError, SampleError

PATIENCE = 15.0
"""Simulated seconds from the last fault of a run to the end of every rank."""
_SLOWNESS = ("stop", "delay")
REFUSED = ("sends", "receives", "start")
_EXPECTED = (SampleError, CollateError, LoaderDiedError, PeerError)


def check_attempt(
    attempt: Attempt, known: dict[Any, Any], expected: list[list[Any]] | None
) -> str | None:
    """What is wrong with a run that has come to its end, if anything is.

    Args:
        known: what each rank received at a step in the runs before; the run's own are added.
        expected: the run's steps, from the beginning, if nothing were killed.
    """
    checks = (_ends(attempt), _causes(attempt), _steps(attempt, known, expected), _shards(attempt))
    return next((wrong for wrong in checks if wrong is not None), None)


def _ends(attempt: Attempt) -> str | None:
    """Every rank that was not killed comes to an end, and leaves nothing behind."""
    happened = [when for _, when in attempt.injected]
    happened += [report.ended_at for report in attempt.reports if report.left]
    last_fault = max(happened, default=0.0)
    stopped = sum(fault.seconds for fault in attempt.settings.faults)
    for process, report in zip(attempt.ranks, attempt.reports, strict=True):
        if process.exit_code == -9:
            continue
        if process.exit_code != 0:
            return f"{process.name} raised what is no error of evenstep's:\n{process.error}"
        if report.lingering:
            return f"{process.name} keeps a thread of a pass that has ended: {report.lingering[-1]}"
        if report.error is not None and report.ended_at > last_fault + stopped + PATIENCE:
            return f"{process.name} heard at {report.ended_at} of what happened at {last_fault}"
    return None


def _causes(attempt: Attempt) -> str | None:
    """An error has a cause, is of the right kind, and names the rank that failed."""
    setup, run = attempt.setup, attempt.settings
    grave = [what for what, _ in attempt.injected if not what.startswith(_SLOWNESS)]
    if run.timeout:
        grave += [what for what, _ in attempt.injected]
        grave += ["slowness"] if run.slow else []
    failing = {what.split()[1].partition(".")[0] for what in grave if "rank" in what}
    if run.leaves is not None and run.who_leaves is not None:
        grave.append("left")
        failing.add(f"rank{run.who_leaves}")
    killed = any(process.exit_code == -9 for process in attempt.ranks)
    for rank, report in enumerate(attempt.reports):
        error = report.error
        if error is None:
            continue
        if not grave and not setup.fails:
            return f"rank {rank} raised, and nothing had failed: {error!r}"
        own = isinstance(error, Injected) and str(error).startswith(f"rank{rank}:")
        if not isinstance(error, _EXPECTED) and not own:
            return f"rank {rank} raised {error!r}"
        refused = any(what.startswith(REFUSED) for what, _ in attempt.injected)
        if "left epoch" in str(error) and run.leaves is None and not refused:
            return f"rank {rank} is not told why: {error!r}"
        if isinstance(error, PeerError) and not setup.fails and len(failing) == 1:
            (culprit,) = failing
            # Ranks that share micro-batches are one data-parallel rank, which is named.
            number = int(culprit.removeprefix("rank"))
            named = any(f"rank {n}" in str(error) for n in (number, number // setup.context))
            unsaid = "could not connect" in str(error)  # who it is was not said yet
            if not (named or unsaid):
                return f"rank {rank} does not name {culprit}: {error!r}"
            dead = {n for n, process in enumerate(attempt.ranks) if process.exit_code == -9}
            dead |= {int(what.split()[1][4:5]) for what, _ in attempt.injected if "sends" in what}
            said = re.findall(r"rank (\d+) \(process \d+ on \w+\) died", str(error))
            if not set(map(int, said)) <= dead:
                return f"rank {rank} says that who lives died: {error!r}"
            accused = set(map(int, re.findall(r"rank (\d+) \(process", str(error))))
            slow = {int(what.split()[1][4:5]) for what, _ in attempt.injected}
            if not accused <= {number, *slow}:
                return f"rank {rank} also names who is not {culprit}: {error!r}"
    left = any(report.left for report in attempt.reports)
    if setup.fails and not (grave or left or killed or all(r.error for r in attempt.reports)):
        return "some ranks end without an error, and others fail"
    return None


def _steps(attempt: Attempt, known: dict[Any, Any], expected: list[list[Any]] | None) -> str | None:
    """Ranks agree on every step; steps follow each other; what was made before is made again; and
    unless a process is killed, all ranks get equally many, those before a sample that fails too."""
    run, reports = attempt.settings, attempt.reports
    for rank, report in enumerate(reports):
        for number, (epoch, step, indices, samples) in enumerate(report.steps):
            here = (indices, samples)
            if known.setdefault((rank, epoch, step), here) != here:
                before = known[rank, epoch, step]
                return f"rank {rank} got {here} at step {step} of epoch {epoch}, before {before}"
            if known.setdefault(("all", epoch, step), samples) != samples:
                return f"ranks do not agree on step {step} of epoch {epoch}"
            if samples[rank // attempt.setup.context] != len(indices):
                return f"rank {rank} got {indices} where {samples} are announced"
            before_it = report.steps[number - 1] if number else (epoch, step - 1)
            begins = step == 0 and before_it[0] == epoch - 1
            if before_it[:2] != (epoch, step - 1) and not begins:
                return f"rank {rank} goes from {before_it[:2]} to {epoch, step}"
            if expected is not None:
                alone = expected[rank][number : number + 1]
                # Of a bad batch, see below. A bad sample loses those that are prepared with it, and
                # they are others after a resume.
                more = attempt.setup.bad_batch is not None or attempt.setup.bad_sample is not None
                if alone != [report.steps[number]] and (alone or not more):
                    return f"rank {rank} got {report.steps[number]}, and {alone} undisturbed"
    disturbed = (
        any(not what.startswith(_SLOWNESS) for what, _ in attempt.injected)
        or run.timeout
        or run.leaves is not None
    )
    if not disturbed:
        counts = [len(report.steps) for report in reports]
        # A rank whose batch cannot be made gets the steps before it; others may get more, since
        # they have made theirs meanwhile.
        where = [not isinstance(report.error, PeerError) for report in reports]
        if attempt.setup.bad_batch is None and len(set(counts)) > 1:
            return f"ranks got unequally many steps: {counts}"
        for rank, count in enumerate(counts):
            if expected is not None and where[rank] and count != len(expected[rank]):
                return f"rank {rank} got {count} steps, and {len(expected[rank])} were settled"
    return None


def _shards(attempt: Attempt) -> str | None:
    """Ranks that share micro-batches have all of their tokens, and save the same."""
    context, reports = attempt.setup.context, attempt.reports
    lengths = Samples(attempt.setup, False).lengths
    if context == 1:
        return None
    for first in range(0, len(reports), context):
        peers = reports[first : first + context]
        for number, steps in enumerate(zip(*(peer.steps for peer in peers), strict=False)):
            if len(set(steps)) > 1:
                return f"ranks {first} and on share step {number}, and get {steps}"
            if not (indices := steps[0][2]):
                continue  # a filler
            tokens = sorted(token for peer in peers for token in peer.tokens[number])
            wanted = sorted(index for index in indices for _ in range(lengths[index]))
            if tokens != wanted:
                return f"ranks {first} and on share {wanted} at step {number}, and get {tokens}"
        for saved in zip(*(peer.saved.values() for peer in peers), strict=False):
            if len(set(saved)) > 1:
                return f"ranks {first} and on save {saved}"
    return None
