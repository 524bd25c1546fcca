from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep_demos.text.budget import REPEATS, TrainingOptions, choose

SPEED = 1e-4

LENGTHS = st.lists(st.integers(2, 200), min_size=60, max_size=150).map(np.array)


@settings(max_examples=10)  # each fits a budget
@given(LENGTHS, st.integers(2, 4), st.integers(2, 200))
def test_every_rank_gets_equally_many_samples_and_none_twice(
    lengths: np.ndarray, world_size: int, samples: int
) -> None:
    samples = max(samples, world_size)
    options = TrainingOptions(max_tokens=300, world_size=world_size, samples=samples)
    wanted = min(samples, len(lengths))
    assert choose(lengths, options, SPEED).samples == wanted - wanted % world_size


@pytest.mark.parametrize("max_tokens", [1000, 1536, 3072])
def test_both_runs_take_about_as_many_steps(max_tokens: int) -> None:
    lengths = np.random.default_rng(2).lognormal(5, 1, 800).astype(np.int64).clip(2, 600)
    choice = choose(lengths, TrainingOptions(max_tokens=max_tokens, samples=800), SPEED)
    fixed, even = (choice.predicted[run]["steps"] for run in ("fixed", "evenstep"))
    assert fixed == -(-choice.samples // 2 // choice.batch_size)
    assert lengths.max() <= choice.max_tokens <= max_tokens
    assert abs(fixed - even) <= 0.05 * fixed  # steps jump where one more long sample fits


def test_twice_the_time_trains_about_twice_the_samples() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1, 4000).astype(np.int64).clip(2, 2000)
    counts = []
    for seconds in (20.0, 40.0):
        options = TrainingOptions(max_tokens=3072, seconds=seconds)
        counts.append(choose(lengths, options, SPEED).samples)
    assert 1.9 < counts[1] / counts[0] < 2.1


def test_predicted_time_is_near_the_time_allowed() -> None:
    lengths = np.random.default_rng(1).lognormal(5, 1, 4000).astype(np.int64).clip(2, 2000)
    options = TrainingOptions(max_tokens=3072, seconds=90.0)
    choice = choose(lengths, options, SPEED)
    tokens = float(lengths[: choice.samples].sum())
    # Useful tokens / efficiency / ranks is the sum over steps of the slowest rank's tokens.
    seconds = (
        SPEED * REPEATS * sum(tokens / run["efficiency"] / 2 for run in choice.predicted.values())
    )
    # Not exactly, as the fixed batch size is an integer and follows from the samples.
    assert seconds == pytest.approx(90.0, rel=0.25)


def test_slow_machines_still_compare_something_and_fast_ones_use_all() -> None:
    lengths = np.full(101, 50)
    options = TrainingOptions(max_tokens=300)
    assert choose(lengths, options, seconds_per_token=1e9).samples == 16
    assert choose(lengths, options, seconds_per_token=1e-9).samples == 100
