"""A disk that is full as a rank saves its state: the loader goes on, and older states are whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FORK, THREADS, loader_over
from ranks import Rank, run

import evenstep
from documents import Documents
from evenstep.errors import PeerError

COUNT = 600  # so many that the end of the epoch is not planned yet when a rank fails
EVERY = 4  # steps
FULL = "/dev/full"


def save(state: dict[str, Any], path: Path, *, full: bool) -> None:
    """As trainers do: whole or not at all."""
    part = path.with_suffix(".part")
    if full:
        part.symlink_to(FULL)
    try:
        with part.open("wb") as file:
            torch.save(state, file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def train_and_save(
    rank: Rank, loader: evenstep.DataLoader, path: Path, seen: dict[int, list[int]]
) -> None:
    """Rank 1's disk is full at the second and the third time. It survives the former."""
    for _, step in loader.steps():
        seen[step.step] = list(step.indices or ())
        number, rest = divmod(step.step + 1, EVERY)
        if rest == 0:
            try:
                full = rank.rank == 1 and number in (2, 3)
                save({"loader": loader.state_dict(), "step": step.step}, path, full=full)
            except OSError:
                if number == 3:
                    raise
        if number == 1 and rest == 0:
            path.replace(path.with_suffix(".first"))


def fail_and_resume(rank: Rank, workers: dict[str, Any], folder: Path) -> Any:
    """What was seen up to the first state, the error in the end, and what came after a resume."""
    path, seen, said = folder / f"state-{rank.rank}.pt", dict[int, list[int]](), ""
    loader = loader_over(Documents(COUNT), shuffle=True, **workers)
    try:
        train_and_save(rank, loader, path, seen)
    except (OSError, PeerError) as error:
        said = evenstep.errors.described(error)
    loader.close()
    assert not list(folder.glob(f"state-{rank.rank}*.part"))
    saved = torch.load(path.with_suffix(".first"))
    resumed = loader_over(Documents(COUNT), shuffle=True, **workers)
    resumed.load_state_dict(saved["loader"])
    again = {step.step: list(step.indices or ()) for _, step in resumed.steps()}
    resumed.close()
    before = {step: indices for step, indices in seen.items() if step <= saved["step"]}
    return before, seen, said, again


@pytest.mark.skipif(not os.path.exists(FULL), reason=f"there is no {FULL}")
@pytest.mark.parametrize("workers", [pytest.param(FORK, marks=pytest.mark.soak), THREADS])
def test_a_full_disk_while_a_state_is_saved(tmp_path: Path, workers: dict[str, Any]) -> None:
    states = tmp_path / "states"
    states.mkdir()
    results = run(fail_and_resume, 2, workers, states, folder=tmp_path)
    samples: list[int] = []
    for before, seen, _, again in results:
        assert set(again) >= {step for step in seen if step not in before}
        assert all(again[step] == seen[step] for step in seen if step not in before)
        samples += [index for indices in (*before.values(), *again.values()) for index in indices]
    assert sorted(samples) == list(range(COUNT))
    (_, _, other, _), (_, own_seen, own, _) = results
    assert max(own_seen) == 3 * EVERY - 1, "it went on after the first failure"
    assert own == "OSError: [Errno 28] No space left on device"
    assert other.startswith("PeerError: rank 1 left epoch 0 early"), other
