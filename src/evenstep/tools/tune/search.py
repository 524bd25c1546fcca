"""The loop over the grid, and the search over a function of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError, SampleError
from evenstep.tools.out_of_memory import free_memory, ran_out_of_memory
from evenstep.tools.tune.candidate import Candidate, NothingSurvivedError
from evenstep.tools.tune.diagnosis import too_small
from evenstep.tools.tune.grid import check_grid
from evenstep.tools.tune.measurement import MeasuredSteps, StepTime, measure
from evenstep.tools.tune.ranking import BAND, check_band
from evenstep.tools.tune.result import TuneResult

Progress = Callable[[int, int, int], None]
"""Called with (max_tokens, done, total)."""


def search(
    make_steps: Callable[[int], Iterable[StepInfo]],
    grid: Iterable[int],
    *,
    measured_steps: MeasuredSteps | None = None,
    band: float = BAND,
    progress: Progress | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> TuneResult:
    """Times a training step in this process for each value of max_tokens, and chooses one.

    Args:
        make_steps: called with a value; returns an iterable that trains one step per item and then
            yields its `StepInfo`. Best a generator function whose locals are the model, the
            optimizer and the loader: they are freed before the next value.
        grid: values of max_tokens.
        measured_steps: the steps to measure; None is ``MeasuredSteps()``.
        band: see `evenstep.tools.tune.ranking`.
        progress: called with (value, done, total) after each step.
        on_candidate: called with each candidate.

    Raises:
        ConfigurationError: an argument is wrong; or this process is one of several ranks, where one
            that runs out of memory would leave the others waiting: use `evenstep tune` there.
        NothingSurvivedError: no value could be measured.

    Other exceptions of `make_steps` than out of memory or a too small max_tokens are raised.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigurationError(
            f"a search in a job of {dist.get_world_size()} ranks would hang if one of them ran "
            "out of memory; run `evenstep tune -- torchrun ...` instead"
        )
    measured_steps = measured_steps or MeasuredSteps()

    def run(value: int) -> Candidate:
        outcome, detail = "", ""
        steps: list[StepTime] = []
        try:
            _train(make_steps, value, measured_steps, steps, progress)
        except SampleError as error:
            refused = too_small(str(error))
            if refused is None:
                raise
            outcome, detail = "too small", refused[2]
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            outcome, detail = "out of memory", str(error).partition("\n")[0]
        free_memory()
        if outcome:
            return Candidate(max_tokens=value, outcome=outcome, detail=detail)
        measured, complete = measured_steps.select(steps)
        if not measured:
            detail = f"ended after {len(steps)} steps, of which {measured_steps.warmup} are warm-up"
            return Candidate(max_tokens=value, outcome="failed", detail=detail)
        detail = "" if complete else f"ended by itself, {len(measured)} steps after warm-up"
        return Candidate(
            max_tokens=value, outcome="ok", detail=detail, measurement=measure(measured)
        )

    return search_upward(
        grid,
        run,
        measured_steps=measured_steps,
        band=band,
        on_candidate=on_candidate,
    )


def search_upward(
    grid: Iterable[int],
    run: Callable[[int], Candidate],
    *,
    measured_steps: MeasuredSteps,
    band: float,
    on_candidate: Callable[[Candidate], None] | None,
) -> TuneResult:
    """Runs the values of `grid`, smallest first, except those whose outcome is already known.

    Raises:
        NothingSurvivedError: no value could be measured.
    """
    check_band(band)
    candidates: list[Candidate] = []
    longest, exceeded = 0, None
    for value in check_grid(grid):
        if exceeded is not None:
            detail = f"{exceeded:,} already ran out of memory"
            candidate = Candidate(max_tokens=value, outcome="skipped", detail=detail)
        elif value < longest:
            detail = f"not run: a sample has {longest:,} tokens"
            candidate = Candidate(max_tokens=value, outcome="too small", detail=detail)
        else:
            candidate = run(value)
        if candidate.outcome == "out of memory" and exceeded is None:
            exceeded = value
        if candidate.outcome == "too small" and (refused := too_small(candidate.detail)):
            length, limit, _ = refused
            # Only if the loader's limit is this value, and not something computed from it.
            longest = max(longest, length) if limit == value else longest
        candidates.append(candidate)
        if on_candidate is not None:
            on_candidate(candidate)
    if not any(candidate.ok for candidate in candidates):
        raise NothingSurvivedError(candidates)
    return TuneResult(candidates=tuple(candidates), band=band, measured_steps=measured_steps)


def _train(
    make_steps: Callable[[int], Iterable[StepInfo]],
    value: int,
    measured_steps: MeasuredSteps,
    steps: list[StepTime],
    progress: Progress | None,
) -> None:
    """Appends to `steps` until all steps are measured."""
    iterable = make_steps(value)
    before = time.perf_counter()
    try:
        for step in iterable:
            if not isinstance(step, StepInfo):
                raise ConfigurationError(
                    f"make_steps({value}) yielded a {type(step).__name__}; it must yield the "
                    "StepInfo of each step after training it"
                )
            if len(steps) + 1 == measured_steps.warmup:
                _finish_launched()
            now = time.perf_counter()
            steps.append(_step_time(now - before, step))
            complete = measured_steps.select(steps)[1]
            if complete:
                _finish_launched()
                steps[-1] = _step_time(time.perf_counter() - before, step)
            before = now
            if progress is not None:
                progress(value, *measured_steps.progress(steps))
            if complete:
                return
    finally:
        close = getattr(iterable, "close", None)
        if close is not None:
            close()


def _step_time(seconds: float, step: StepInfo) -> StepTime:
    return StepTime(
        seconds,
        step.global_samples,
        step.global_tokens,
        step.global_padded_tokens,
        step.totals.moments.together(),
        step.ends_update,
    )


def _finish_launched() -> None:
    """Waits for the GPU. For both ends of the measured steps only: a training does not wait."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
