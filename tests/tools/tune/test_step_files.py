"""What the loader writes down is what the search reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import evenstep
from evenstep.loader.tune_log import FOLDER
from evenstep.tools.tune.step_files import StepFiles


def loader(samples: int, max_tokens: int = 40) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        [{"input_ids": torch.zeros(1 + i % 20)} for i in range(samples)],
        policy=evenstep.TokenBudget(max_tokens),
        memory=evenstep.Memory(buffer_size=16),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


def test_all_steps_but_the_last_of_each_epoch_are_read_in_order(folder: Path) -> None:
    training, files = loader(60), StepFiles(folder)
    expected, handed_over = [], 0
    for _ in range(2):
        steps = [step for _, step in training.steps()]
        files.read()
        handed_over += len(steps)
        expected += [
            (s.global_samples, s.global_tokens, s.global_padded_tokens, s.length_variance)
            for s in steps[:-1]
        ]
    assert [
        (s.samples, s.tokens, s.padded_tokens, float(s.moments.variance)) for s in files.steps
    ] == expected
    assert all(step.ends_update for step in files.steps)
    assert all(step.seconds >= 0 for step in files.steps)
    assert files.handed_over == handed_over
    assert files.policy == training.policy.fingerprint


def test_steps_may_be_read_one_by_one_and_half_lines_wait(folder: Path) -> None:
    files = StepFiles(folder)
    for count, _ in enumerate(loader(60).steps()):
        files.read()
        assert len(files.steps) == count
    (path,) = folder.iterdir()
    with path.open("a") as file:
        line = path.read_text().splitlines()[-1]
        file.write(line[:10])
        file.flush()
        files.read()
        assert len(files.steps) == count
        file.write(line[10:] + "\n")
    files.read()
    assert len(files.steps) == count + 1


def test_evaluation_is_left_out(folder: Path) -> None:
    files = StepFiles(folder)
    with torch.no_grad():
        assert sum(1 for _ in loader(600, max_tokens=30).steps()) > 20
    for _ in loader(60).steps():
        pass
    files.read()
    assert files.policy == evenstep.TokenBudget(40).fingerprint
    assert len(list(folder.iterdir())) == 1


def test_of_several_loaders_that_with_most_samples_is_measured(folder: Path) -> None:
    for small_first in (loader(20, max_tokens=30), loader(60)):
        for _ in small_first.steps():
            pass
    files = StepFiles(folder)
    files.read()
    assert files.policy == evenstep.TokenBudget(40).fingerprint


def test_without_the_variable_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    for _ in loader(20).steps():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_reported_when_the_loader_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FOLDER, "/nowhere/at/all")
    with pytest.raises(evenstep.ConfigurationError, match="EVENSTEP_TUNE=/nowhere/at/all"):
        loader(20)
