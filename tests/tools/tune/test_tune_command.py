"""A search over a command: real processes, real faults, and nothing left of any of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.tune import (
    Candidate,
    MeasuredSteps,
    NothingSurvivedError,
    TuneResult,
    tune_command,
)

TRAINING = Path(__file__).with_name("training.py")

# Says what a loader's step log says, without the seconds that importing torch takes.
FAST = """
import json, os, pathlib, sys, time
value = int(os.environ["EVENSTEP_MAX_TOKENS"])
log = pathlib.Path(os.environ["EVENSTEP_TUNE"], "a.steps").open("w", buffering=1)
def hand_over(steps, policy=f"P({value})"):
    print(json.dumps({"policy": policy, "world_size": 1}), file=log)
    for i in range(steps):
        line = {"time": i, "epoch": 0, "samples": value, "tokens": 1, "padded_tokens": 1,
                "length_moments": [1, 0, 0], "ends_update": True}
        print(json.dumps(line), file=log)
"""


def train(folder: Path, grid: list[int], *faults: str, **options: float) -> TuneResult:
    command = [sys.executable, str(TRAINING), str(folder), "{max_tokens}", *faults]
    measured_steps = MeasuredSteps(warmup=2, steps=5)
    return tune_command(command, grid, measured_steps=measured_steps, grace=0.2, **options)  # type: ignore[arg-type]


def fast(script: str, grid: list[int], **options: float) -> tuple[Candidate, ...]:
    """What became of each value, where `script` plays the training."""
    command = [sys.executable, "-c", FAST + script]
    try:
        return tune_command(
            command,
            grid,
            measured_steps=MeasuredSteps(warmup=2, steps=5),
            **options,  # type: ignore[arg-type]
        ).candidates
    except NothingSurvivedError as error:
        return error.candidates


@pytest.fixture(autouse=True)
def before() -> set[psutil.Process]:
    """What other tests have left running, such as multiprocessing's resource tracker."""
    BEFORE.clear()
    BEFORE.update(psutil.Process().children(recursive=True))
    return BEFORE


BEFORE: set[psutil.Process] = set()


def children() -> list[psutil.Process]:
    return [c for c in psutil.Process().children(recursive=True) if c not in BEFORE]


def test_samples_are_those_the_training_counted_and_running_out_of_memory_is_survived(
    tmp_path: Path,
) -> None:
    result = train(tmp_path, [2048, 64, 1024], "memory=1024")
    candidates = {c.max_tokens: c for c in result.candidates}
    assert list(candidates) == [64, 1024, 2048]
    outcomes = [c.outcome for c in candidates.values()]
    assert outcomes == ["ok", "out of memory", "skipped"]
    assert "misbehave" in candidates[1024].output
    assert "torch.OutOfMemoryError: CUDA out of memory" in candidates[1024].detail
    assert candidates[2048].detail == "1,024 already ran out of memory"
    counted = list(map(int, (tmp_path / "64.counts").read_text().split()))
    measured = candidates[64].measurement
    assert measured is not None
    # The first two are warm-up, and the step under way at the end is not counted.
    assert (measured.steps, measured.samples) == (5, sum(counted[2:7]))
    assert len(counted) >= 7
    assert result.max_tokens == 64
    assert not (tmp_path / "2048.counts").exists()
    assert not children()


def test_a_training_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(NothingSurvivedError, match="64: hung, no new step") as caught:
        train(tmp_path, [64], "hang=64", patience=1)
    assert [c.outcome for c in caught.value.candidates] == ["hung"]
    assert not psutil.pid_exists(int((tmp_path / "hanging").read_text()))
    assert not children()


def test_what_a_training_that_died_has_left_behind_is_ended(tmp_path: Path) -> None:
    # Like the ranks of a launcher that was killed: orphans in a session of their own.
    script = f"""
import subprocess
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path({str(tmp_path / "orphan")!r}).write_text(str(child.pid))
os.kill(os.getpid(), 9)
"""
    (candidate,) = fast(script, [10])
    assert candidate.outcome == "out of memory"
    assert not psutil.pid_exists(int((tmp_path / "orphan").read_text()))


def test_larger_values_are_skipped_after_running_out_of_memory() -> None:
    script = "hand_over(1) if value == 10 else hand_over(9)\n"
    script += "if value == 10: sys.exit('RuntimeError: CUDA error: out of memory')"
    outcomes = [c.outcome for c in fast(script, [5, 10, 20])]
    assert outcomes == ["ok", "out of memory", "skipped"]


def test_values_below_a_sample_that_was_refused_are_not_run() -> None:
    refused = "sys.exit(f'SampleError: sample 7 has 25 tokens, over max_tokens={value}')"
    candidates = fast(f"if value < 25: {refused}\nhand_over(9)", [10, 20, 30])
    assert [c.outcome for c in candidates] == ["too small", "too small", "ok"]
    assert candidates[1].detail == "not run: a sample has 25 tokens"


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        ("hand_over(6)", "ok", "ended by itself, 3 steps after warm-up"),
        ("hand_over(4)", "failed", "ended by itself after 3 timed steps"),
        ("", "failed", "ended without a step of an evenstep.DataLoader"),
        ("hand_over(9); sys.exit(3)", "ok", ""),
        ("hand_over(6); sys.exit(3)", "failed", "exit code 3"),
        ("hand_over(3); raise ValueError('a bug')", "failed", "exit code 1; ValueError: a bug"),
        ("os.kill(os.getpid(), 9)", "out of memory", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 11)", "failed", "killed by SIGSEGV"),
        (
            "print('skipping: CUDA out of memory.', flush=True); hand_over(9); time.sleep(600)",
            "out of memory",
            "continued, but printed: skipping: CUDA out of memory.",
        ),
    ],
)
def test_how_a_run_ended_decides_what_it_says(script: str, outcome: str, detail: str) -> None:
    (candidate,) = fast(script, [10])
    assert (candidate.outcome, candidate.ok) == (outcome, outcome == "ok")
    assert detail in candidate.detail
    assert not children()


def test_a_training_that_ignores_the_value_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"P\(8\) for max_tokens=10 and for 20"):
        fast("hand_over(9, 'P(8)')", [10, 20])


def test_a_command_that_cannot_be_started_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match="no-such-program: No such file"):
        tune_command(["no-such-program"], [10, 20])


def test_what_was_printed_is_kept_where_asked_for_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    os.mkdir(tmp_path / "tmp")
    command = [sys.executable, "-c", FAST + "print('value', value, *sys.argv[1:]); hand_over(9)"]
    measured_steps = MeasuredSteps(warmup=2, steps=5)
    tune_command(
        [*command, "--n={max_tokens}"], [10], measured_steps=measured_steps, logs=tmp_path / "logs"
    )
    assert (tmp_path / "logs" / "10.log").read_text() == "value 10 --n=10\n"
    assert os.listdir(tmp_path / "tmp") == []
