"""The search itself, upward through the grid; and over a function of this process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError, SampleError
from evenstep.tools.tune.candidate import Candidate, NothingSurvivedError
from evenstep.tools.tune.diagnosis import ran_out_of_memory, too_small
from evenstep.tools.tune.grid import check_grid
from evenstep.tools.tune.measurement import StepTime, measure
from evenstep.tools.tune.ranking import BAND, check_band
from evenstep.tools.tune.result import TuneResult
from evenstep.tools.tune.window import MeasuredSteps

__all__ = ["Progress", "search", "search_upward"]

Progress = Callable[[int, int, int], None]
"""Of (max_tokens, done, total)."""


def search(
    make_steps: Callable[[int], Iterable[StepInfo]],
    grid: Iterable[int],
    *,
    window: MeasuredSteps | None = None,
    band: float = BAND,
    exhaustive: bool = False,
    progress: Progress | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> TuneResult:
    """Times a training step in this process for each value of max_tokens, and chooses one.

    Args:
        make_steps: called with a value; gives an iterable that trains one step per item and yields
            the step's `StepInfo` when it has. A generator function whose locals are the model, the
            optimizer and the loader is what is meant: they are freed before the next value.
        grid: values of max_tokens.
        window: which steps are measured; ``MeasuredSteps()`` when None.
        band: see `evenstep.tools.tune.ranking`.
        exhaustive: go on with larger values after one that ran out of memory.
        progress: called with (value, done, total) after each step.
        on_candidate: called with each outcome.

    Raises:
        ConfigurationError: an argument is wrong; or this process is a rank of several, of which one
            that runs out of memory would leave the others waiting: use `evenstep tune` there.
        NothingSurvivedError: no value could be measured.

    What `make_steps` raises, other than for want of memory or of max_tokens, is raised.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigurationError(
            f"a search in a job of {dist.get_world_size()} ranks would hang where one of them runs "
            "out of memory; run `evenstep tune -- torchrun ...` instead"
        )
    window = window or MeasuredSteps()

    def run(value: int) -> Candidate:
        outcome, detail = "", ""
        steps: list[StepTime] = []
        try:
            _train(make_steps, value, window, steps, progress)
        except SampleError as error:
            refused = too_small(str(error))
            if refused is None:
                raise
            outcome, detail = "too small", refused[2]
        except Exception as error:
            if not ran_out_of_memory(error):
                raise
            outcome, detail = "out of memory", str(error).partition("\n")[0]
        # Not in the handlers: there the exception still holds the frames, and they the tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if outcome:
            return Candidate(max_tokens=value, outcome=outcome, detail=detail)
        measured, closed = window.cut(steps)
        if not measured:
            detail = f"ended after {len(steps)} steps, of which {window.warmup} are warm-up"
            return Candidate(max_tokens=value, outcome="failed", detail=detail)
        detail = "" if closed else f"ended by itself, {len(measured)} steps after warm-up"
        return Candidate(
            max_tokens=value, outcome="ok", detail=detail, measurement=measure(measured)
        )

    return search_upward(
        grid, run, window=window, band=band, exhaustive=exhaustive, on_candidate=on_candidate
    )


def search_upward(
    grid: Iterable[int],
    run: Callable[[int], Candidate],
    *,
    window: MeasuredSteps,
    band: float,
    exhaustive: bool,
    on_candidate: Callable[[Candidate], None] | None,
) -> TuneResult:
    """Runs the values of `grid`, smallest first, but for those whose outcome is known already.

    Raises:
        NothingSurvivedError: no value could be measured.
    """
    check_band(band)
    candidates: list[Candidate] = []
    longest, exceeded = 0, None
    for value in check_grid(grid):
        if exceeded is not None and not exhaustive:
            detail = f"{exceeded:,} ran out of memory already"
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
            # Only where the loader's limit is this value, and not something computed from it.
            longest = max(longest, length) if limit == value else longest
        candidates.append(candidate)
        if on_candidate is not None:
            on_candidate(candidate)
    if not any(candidate.ok for candidate in candidates):
        raise NothingSurvivedError(candidates)
    return TuneResult(candidates=tuple(candidates), band=band, window=window)


def _train(
    make_steps: Callable[[int], Iterable[StepInfo]],
    value: int,
    window: MeasuredSteps,
    steps: list[StepTime],
    progress: Progress | None,
) -> None:
    """Appends to `steps` until the window is closed."""
    iterable = make_steps(value)
    before = time.perf_counter()
    try:
        for step in iterable:
            if not isinstance(step, StepInfo):
                raise ConfigurationError(
                    f"make_steps({value}) yielded a {type(step).__name__}; it must yield the "
                    "StepInfo of each step that it has trained"
                )
            if len(steps) + 1 == window.warmup:
                _finish_launched()
            now = time.perf_counter()
            steps.append(_step_time(now - before, step))
            closed = window.cut(steps)[1]
            if closed:
                _finish_launched()
                steps[-1] = _step_time(time.perf_counter() - before, step)
            before = now
            if progress is not None:
                progress(value, *window.progress(steps))
            if closed:
                return
    finally:
        close = getattr(iterable, "close", None)
        if close is not None:
            close()


def _step_time(seconds: float, step: StepInfo) -> StepTime:
    return StepTime(seconds, step.global_samples, step.global_tokens, step.global_padded_tokens)


def _finish_launched() -> None:
    """Waits for the GPU. At both ends of the window only: in between a training does not either."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
