"""The search over a command: runs the user's training script for a short time for each value."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.loader.tune_log import FOLDER
from evenstep.tools.tune.candidate import Candidate
from evenstep.tools.tune.diagnosis import diagnose, survived_running_out, tail
from evenstep.tools.tune.measurement import MeasuredSteps, measure
from evenstep.tools.tune.ranking import BAND
from evenstep.tools.tune.result import TuneResult
from evenstep.tools.tune.search import Progress, search_upward
from evenstep.tools.tune.step_files import StepFiles
from evenstep.tools.tune.trial_run import TrialRun

PLACEHOLDER = "{max_tokens}"
MAX_TOKENS = "EVENSTEP_MAX_TOKENS"

_LOOK = 0.1  # seconds between looks at its progress
_FEWEST = 2  # measured steps of a command that ends by itself, at least


def tune_command(
    command: Sequence[str],
    grid: Iterable[int],
    *,
    measured_steps: MeasuredSteps | None = None,
    band: float = BAND,
    startup: float = 1800.0,
    patience: float = 300.0,
    grace: float = 10.0,
    logs: Path | None = None,
    progress: Progress | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> TuneResult:
    """Runs `command` for each value until its steps are measured, and ends it.

    Args:
        command: program and arguments; ``{max_tokens}`` in them is replaced by the value, which the
            environment variable ``EVENSTEP_MAX_TOKENS`` has too.
        grid: values of max_tokens.
        measured_steps: the steps to measure; None is ``MeasuredSteps()``.
        band: see `evenstep.tools.tune.ranking`.
        startup: seconds until a run's first step, after which it counts as hung.
        patience: seconds until each further step, after which it counts as hung.
        grace: seconds between asking a run to end and killing it.
        logs: folder for the output of each run, as MAX_TOKENS.log.
        progress: called with (value, done, total) during a run.
        on_candidate: called with each candidate.

    Raises:
        ConfigurationError: the command cannot be started, or ignores the value.
        NothingSurvivedError: no value could be measured.
    """
    measured_steps = measured_steps or MeasuredSteps()
    if not command:
        raise ConfigurationError("no command; give the command of the training after --")
    for name, seconds in (("startup", startup), ("patience", patience), ("grace", grace)):
        if not seconds > 0:
            raise ConfigurationError(f"{name}={seconds} must be a positive number of seconds")
    policies: dict[str, int] = {}

    def run(value: int) -> Candidate:
        with tempfile.TemporaryDirectory(prefix="evenstep-tune-") as created:
            scratch = Path(created)
            folder = logs if logs is not None else scratch
            folder.mkdir(parents=True, exist_ok=True)
            output = folder / f"{value}.log"
            output.write_bytes(b"")
            files = StepFiles(scratch)
            environment = {**os.environ, FOLDER: str(scratch), MAX_TOKENS: str(value)}
            arguments = [word.replace(PLACEHOLDER, str(value)) for word in command]
            with TrialRun(
                arguments, environment=environment, output=output, scratch=scratch, grace=grace
            ) as trial:
                complete, printed = _follow(
                    trial,
                    files,
                    measured_steps,
                    output,
                    startup=startup,
                    patience=patience,
                    progress=None if progress is None else partial(progress, value),
                )
                returncode = trial.stop()
            files.read()
            text = output.read_bytes()[:printed].decode(errors="replace")
        if files.policy:
            _check_value_used(policies, files.policy, value)
        return _candidate(
            value, files, measured_steps, text, complete=complete, returncode=returncode
        )

    return search_upward(
        grid,
        run,
        measured_steps=measured_steps,
        band=band,
        on_candidate=on_candidate,
    )


def _follow(
    trial: TrialRun,
    files: StepFiles,
    measured_steps: MeasuredSteps,
    output: Path,
    *,
    startup: float,
    patience: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[bool, int | None]:
    """Waits until all steps are measured, the command has ended or no step has come for too long.

    Returns:
        Whether all steps are measured; and the bytes printed so far if the command still runs, as
        later output is about being ended.
    """
    seen, moment = 0, time.monotonic()
    while True:
        ended = trial.ended  # before reading, so that its last lines are read
        files.read()
        if measured_steps.select(files.steps)[1]:
            return True, output.stat().st_size
        if progress is not None:
            progress(*measured_steps.progress(files.steps))
        if files.handed_over > seen:
            seen, moment = files.handed_over, time.monotonic()
        if ended:
            return False, None
        if time.monotonic() - moment > (patience if seen else startup):
            return False, output.stat().st_size
        time.sleep(_LOOK)


def _candidate(
    value: int,
    files: StepFiles,
    measured_steps: MeasuredSteps,
    text: str,
    *,
    complete: bool,
    returncode: int | None,
) -> Candidate:
    measured, _ = measured_steps.select(files.steps)
    trained = len(files.steps)
    if complete:
        detail = survived_running_out(text)
        outcome = "out of memory" if detail else "ok"
    else:
        outcome, detail = diagnose(text, returncode)
    if outcome == "failed" and returncode == 0:
        if len(measured) >= _FEWEST:
            outcome, detail = "ok", f"ended by itself, {len(measured)} steps after warm-up"
        elif files.handed_over:
            detail = (
                f"ended by itself after {trained} timed steps, of which the first "
                f"{measured_steps.warmup} are warm-up; train on more samples, or lower the warm-up"
            )
        else:
            detail = (
                "ended without a step of an evenstep.DataLoader; the training must iterate one, in "
                f"processes that inherit the environment variable {FOLDER}"
            )
    elif outcome == "hung":
        where = f"after {trained} steps" if files.handed_over else "before its first step"
        detail = f"no new step for too long, {where}" + (f"; {detail}" if detail else "")
    ok = outcome == "ok"
    return Candidate(
        max_tokens=value,
        outcome=outcome,
        detail=detail,
        output="" if ok else tail(text),
        measurement=measure(measured) if ok else None,
    )


def _check_value_used(policies: dict[str, int], policy: str, value: int) -> None:
    if policy in policies:
        raise ConfigurationError(
            f"the command trained with {policy} for max_tokens={policies[policy]:,} and for "
            f"{value:,}: it ignores the value; put {PLACEHOLDER} into its arguments, or read "
            f"the environment variable {MAX_TOKENS}"
        )
    policies[policy] = value
