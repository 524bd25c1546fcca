"""A search over a function of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import evenstep
from evenstep import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.tools.tune import Candidate, MeasuredSteps, NothingSurvivedError, search

MEASURED = MeasuredSteps(warmup=1, steps=3)


class Trainer:
    """Trains on lengths 1 to 100, and counts."""

    def __init__(self, dies_from: int = 10**9) -> None:
        self.dies_from = dies_from
        self.trained: dict[int, list[int]] = {}
        self.closed: list[int] = []

    def __call__(self, max_tokens: int) -> Iterator[StepInfo]:
        samples = [{"input_ids": torch.zeros(1 + i % 100)} for i in range(1000)]
        loader = evenstep.DataLoader(
            samples,
            policy=evenstep.TokenBudget(max_tokens),
            memory=evenstep.Memory(buffer_size=128),
        )
        self.trained[max_tokens] = []
        try:
            for _batch, step in loader.steps():
                if max_tokens >= self.dies_from:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried\nlong story")
                self.trained[max_tokens].append(step.global_samples)
                yield step
        finally:
            self.closed.append(max_tokens)


def test_each_value_is_timed_over_its_measured_steps_and_running_out_of_memory_is_survived() -> (
    None
):
    trainer = Trainer(dies_from=800)
    reported: list[Candidate] = []
    progress: list[tuple[int, int, int]] = []
    result = search(
        trainer,
        [1600, 50, 200, 400, 800],
        measured_steps=MEASURED,
        on_candidate=reported.append,
        progress=lambda *values: progress.append(values),
    )
    assert tuple(reported) == result.candidates
    outcomes = {c.max_tokens: c.outcome for c in result.candidates}
    assert outcomes == {
        50: "too small",
        200: "ok",
        400: "ok",
        800: "out of memory",
        1600: "skipped",
    }
    for candidate in result.candidates:
        measured = candidate.measurement
        if measured is not None:
            trained = trainer.trained[candidate.max_tokens]
            # No step is trained in vain.
            assert (len(trained), measured.samples) == (4, sum(trained[1:]))
    assert result.candidates[3].detail == "CUDA out of memory. Tried"
    assert trainer.closed == [50, 200, 400, 800]
    assert progress[:4] == [(200, 0, 3), (200, 1, 3), (200, 2, 3), (200, 3, 3)]
    assert result.max_tokens in (200, 400)


def test_if_nothing_survives_the_error_lists_every_value() -> None:
    with pytest.raises(NothingSurvivedError) as caught:
        search(Trainer(dies_from=200), [64, 200, 400], measured_steps=MEASURED)
    for part in (
        "64: too small, sample",
        "200: out of memory, CUDA",
        "400: skipped, 200 already ran out",
    ):
        assert part in str(caught.value)


def test_a_bug_of_the_function_is_raised() -> None:
    def broken(max_tokens: int) -> Iterator[StepInfo]:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        search(broken, [64], measured_steps=MEASURED)


def test_a_sample_that_is_bad_for_another_reason_is_raised() -> None:
    def empty(max_tokens: int) -> Iterator[StepInfo]:
        loader = evenstep.DataLoader(
            [{"input_ids": torch.zeros(0)}], policy=evenstep.TokenBudget(max_tokens)
        )
        yield from (step for _, step in loader.steps())

    with pytest.raises(evenstep.SampleError):
        search(empty, [64], measured_steps=MEASURED)


def test_what_is_yielded_must_be_steps() -> None:
    with pytest.raises(ConfigurationError, match="yielded a int"):
        search(lambda max_tokens: [1, 2], [64], measured_steps=MEASURED)  # type: ignore[list-item,return-value]


def test_a_training_that_ends_in_warm_up_is_no_measurement() -> None:
    with pytest.raises(NothingSurvivedError, match="failed, ended after 10 steps, of which 10"):
        search(
            lambda value: list(Trainer()(value))[:10],
            [1000],
            measured_steps=MeasuredSteps(warmup=10, steps=1),
        )


def test_one_rank_of_several_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 8)
    with pytest.raises(ConfigurationError, match="job of 8 ranks"):
        search(Trainer(), [64], measured_steps=MEASURED)
