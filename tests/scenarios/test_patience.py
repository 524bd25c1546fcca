"""Ranks may be slow, pause, or use their loaders in any way; nothing but time is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import Rank, run

import evenstep
from documents import Documents

FORK = {"num_workers": 1, "multiprocessing_context": "fork"}
PAUSE = 1.7  # seconds


class Slow(Documents):
    """One document takes longer than some ticks."""

    def __init__(self, index: int) -> None:
        super().__init__(200)
        self.index = index

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.index:
            time.sleep(PAUSE)
        return super().__getitem__(index)


def loader_over(dataset: Any, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        dataset,
        policy=evenstep.TokenBudget(max_tokens=1024),
        memory=evenstep.Memory(buffer_size=16),
        **options,
    )


def epoch_of(loader: evenstep.DataLoader) -> list[Any]:
    return [step.indices for _, step in loader.steps()]


def one_is_slow(rank: Rank, workers: dict[str, Any]) -> Any:
    dataset = Slow(101) if rank.rank else Documents(200)
    return epoch_of(loader_over(dataset, **workers))


def one_pauses(rank: Rank, workers: dict[str, Any]) -> Any:
    """Rank 0 pauses amid the epoch, as for an evaluation that it alone makes."""
    loader = loader_over(Documents(200), **workers)
    evaluated = evenstep.DataLoader(Documents(30, seed=1), batch_size=4, group="local", **workers)
    steps = []
    for _, step in loader.steps():
        steps.append(step.indices)
        if rank.rank == 0 and step.step == 4:
            time.sleep(PAUSE)
            assert sum(len(step.indices) for _, step in evaluated.steps()) == 30
    return steps


@pytest.mark.slow
def test_slowness_of_one_rank_changes_no_batch(tmp_path: Path) -> None:
    quick = run(nobody_is_slow, 2, folder=folder_in(tmp_path, "quick"))
    assert run(one_is_slow, 2, FORK, folder=folder_in(tmp_path, "slow")) == quick
    assert run(one_pauses, 2, {}, folder=folder_in(tmp_path, "pauses")) == quick


def nobody_is_slow(rank: Rank) -> Any:
    return epoch_of(loader_over(Documents(200)))


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def subgroups(rank: Rank) -> Any:
    """Two data-parallel groups of two ranks each, with documents of their own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    own = rank.rank % 2
    seen = []
    for _ in range(3):
        loader = loader_over(Documents(60 + own, seed=own), group=groups[own])
        steps = list(loader.steps())
        assert {step.world_size for _, step in steps} == {2}
        assert {step.rank for _, step in steps} == {rank.rank // 2}
        seen.append([i for _, step in steps for i in step.indices])
        time.sleep(0.3 * (rank.rank // 2))  # so that ranks do not give up loaders together
    return seen


def test_a_loader_keeps_to_its_group(tmp_path: Path) -> None:
    results = run(subgroups, 4, folder=tmp_path)
    for which in range(3):
        assert sorted(results[0][which] + results[2][which]) == list(range(60))
        assert sorted({*results[1][which], *results[3][which]}) == list(range(61))


def loader_after_loader(rank: Rank) -> Any:
    """A new loader for every pass, which each rank gives up when it likes."""
    counts = []
    for number in range(6):
        loader = loader_over(Documents(40, seed=number))
        counts.append(sum(len(step.indices) for _, step in loader.steps()))
        if (number + rank.rank) % 3 == 0:
            loader.close()
        if (number + rank.rank) % 3 == 1:
            kept = loader  # noqa: F841  until the next one takes its place
        time.sleep(0.2 * ((number + rank.rank) % 2))
    return counts


def test_a_new_loader_may_be_made_for_every_pass(tmp_path: Path) -> None:
    assert run(loader_after_loader, 2, folder=tmp_path) == [[20] * 6] * 2


def length_on_one_rank(rank: Rank) -> Any:
    first, second = (evenstep.DataLoader(Documents(n), batch_size=4) for n in (30, 41))
    if rank.rank == 0:  # as a progress bar does
        assert (len(second), len(first)) == (6, 4)
    return [sum(1 for _ in loader) for loader in (first, second)]


def test_the_length_of_a_loader_takes_no_other_rank(tmp_path: Path) -> None:
    assert run(length_on_one_rank, 2, folder=tmp_path) == [[4, 6]] * 2


SCRIPT = """
import sys
import evenstep
from documents import Documents

loader = evenstep.DataLoader(
    Documents(10_000), batch_size=4, num_workers={workers}, **{context}
)
steps = loader.steps()
next(steps)
{ending}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "workers"),
    [("", 0, {}), ("raise ValueError('in training')", 1, FORK)],
    ids=["end", "raise"],
)
def test_a_script_may_end_amid_a_pass(ending: str, code: int, workers: dict[str, Any]) -> None:
    context = {k: v for k, v in workers.items() if k != "num_workers"}
    script = SCRIPT.format(workers=workers.get("num_workers", 0), context=context, ending=ending)
    tests = str(Path(__file__).parents[1])
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.append({tests!r})\n{script}",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.count("Traceback") == (code == 1), ended.stderr
