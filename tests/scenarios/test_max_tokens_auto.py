"""``max_tokens="auto"``: groups grow to the share of memory that the user allows."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from torch.utils.data import Dataset

import evenstep
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.integrations.job_facts import estimate_steps
from evenstep.loader.memory_watch import MemoryWatch, Usage

TOTAL = 30_000
RESTING = 1_000


COUNT = 2000
LENGTHS = (
    (torch.rand(4000, generator=torch.Generator().manual_seed(0)) ** 3 * 900 + 20).long().tolist()
)


class Texts(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((LENGTHS[index],), index)}


class Device:
    """Groups take as many bytes as `power` of their tokens says, or of those of a row and their
    rows; memory is never given back."""

    def __init__(self, power: float = 1.0, scale: float = 1.0, rows: bool = False) -> None:
        self.power, self.scale, self.peak, self.failures = power, scale, RESTING, 0
        self.rows = rows

    def usage(self) -> Usage:
        return Usage(RESTING, self.peak, TOTAL, self.failures)

    def trains(self, step: evenstep.StepInfo) -> None:
        rows = step.samples if self.rows else 1
        taken = rows * int(self.scale * (step.padded_tokens / rows) ** self.power)
        self.peak = max(self.peak, RESTING + taken)


def loader_of(device: Device, packed: bool = False, count: int = COUNT, **options: Any) -> Any:
    MemoryWatch._usage = lambda watch: device.usage()  # type: ignore[method-assign]
    return evenstep.DataLoader(
        Texts(count),
        policy=evenstep.Even("auto", packed=packed),
        shuffle=True,
        seed=1,
        multiprocessing_context="fork" if options.get("num_workers") else None,
        **{"num_workers": 0, **options},
    )


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryWatch, "_usage", MemoryWatch._usage)


def samples_of(batch: Any, step: evenstep.StepInfo) -> list[int]:
    """Of a batch, after checking each by its tokens."""
    if "cu_seqlens" in batch:
        ends = batch["cu_seqlens"].tolist()
        rows = [batch["input_ids"][0, begin:end] for begin, end in pairwise(ends)]
    else:
        rows = [row[mask.bool()] for row, mask in zip(batch["input_ids"], batch["attention_mask"])]
    for row, index in zip(rows, step.indices or (), strict=True):
        assert row.tolist() == [index] * LENGTHS[index]
    return list(step.indices or ())


@pytest.mark.parametrize(
    ("packed", "workers", "device"),
    [
        (True, 1, Device(2.0, 1e-4)),
        (False, 0, Device()),
        (False, 0, Device(2.0, 2e-3, rows=True)),
    ],
    ids=["packed squares", "padded", "squares of rows"],
)
def test_the_peak_comes_to_the_share_from_below_and_every_sample_comes_once(
    packed: bool, workers: int, device: Device
) -> None:
    seen: list[int] = []
    loader = loader_of(device, packed, num_workers=workers)
    for batch, step in loader.steps():
        device.trains(step)
        seen += samples_of(batch, step)
    assert sorted(seen) == list(range(COUNT))
    assert 0.85 * 0.9 * TOTAL < device.peak <= 0.9 * TOTAL
    # What was found holds in the next epoch, once windows are large enough.
    assert max(step.padded_tokens for _, step in islice(loader.steps(), 4)) > 8_000
    loader.close()


def test_a_loop_that_goes_on_after_memory_ran_out_gets_half(caplog: Any) -> None:
    device, sizes = Device(), []
    loader = loader_of(device)
    for _, step in loader.steps():
        device.trains(step)
        sizes.append(step.padded_tokens)
        if step.step == 20:
            device.failures += 1
    most = 1.05 * max(sizes[10:21])  # groups have up to 5 % less than they may
    assert 0.3 * most < max(sizes[26:]) <= 0.5 * most
    assert not [record for record in caplog.records if "ran out" in record.message]
    loader.close()


def test_an_update_of_fixed_tokens_keeps_them() -> None:
    device = Device()
    tokens: dict[int, int] = {}
    steps: dict[int, int] = {}
    for _, step in loader_of(device, True, len(LENGTHS), update_tokens=40_000).steps():
        device.trains(step)
        assert step.micro_step == steps.get(step.update, 0)
        tokens[step.update] = tokens.get(step.update, 0) + step.global_tokens
        steps[step.update] = steps.get(step.update, 0) + 1
        assert (
            step.ends_update == (steps[step.update] == step.accumulate)
            or step.update == len(steps) - 1
        )
    counts = list(steps.values())
    assert counts[0] > 18
    assert counts[-2] == 2
    whole = list(tokens.values())[:-9]  # the last window is shared out
    assert 0.97 * 40_000 < min(whole) <= max(whole) < 1.02 * 40_000


@pytest.mark.parametrize("stop", [4, 9])
def test_a_resumed_job_makes_the_same_update_and_goes_on_with_what_was_found(stop: int) -> None:
    device = Device()
    loader = loader_of(device, accumulate=2)
    whole, state, fits = [], {}, []
    for _, step in loader.steps():
        device.trains(step)
        whole.append(step.indices)
        if step.step == stop:
            state = loader.state_dict()
    loader.close()
    again = loader_of(Device(), accumulate=2)
    again.load_state_dict(state)
    rest = [step.indices for _, step in again.steps()]
    update = stop // 2 * 2 + 2
    assert rest[: update - stop - 1] == whole[stop + 1 : update]
    every = [index for step in whole[: stop + 1] + rest for index in step or ()]
    assert sorted(every) == list(range(COUNT))
    fits = state["epoch"]["fits"]
    assert fits[1]["tokens"] >= fits[0]["tokens"] >= 2048
    again.close()


def train(rank: Rank) -> Any:
    device = Device(scale=1.0 + rank.rank)
    loader = loader_of(device, num_workers=1)
    indices, most = [], []
    for _, step in loader.steps():
        device.trains(step)
        indices.append(step.indices)
        most.append(int(step.totals.padded_tokens.max()))
    state = loader.state_dict()["epoch"]["fits"]
    loader.close()
    return indices, most, state, device.peak


def test_ranks_go_on_with_what_fits_on_the_one_with_the_least_memory(tmp_path: Path) -> None:
    first, second = run(train, 2, folder=tmp_path, within=120)
    assert len(first[0]) == len(second[0])
    every = [index for rank in (first, second) for step in rank[0] for index in step]
    assert sorted(every) == list(range(COUNT))
    assert first[2] == second[2]
    assert first[1] == second[1]
    assert 0.8 * 0.9 * TOTAL < second[3] <= 0.9 * TOTAL


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a number of tokens"):
        evenstep.Even("all")
    with pytest.raises(ConfigurationError, match="must be above 0"):
        evenstep.Memory(share=0)
    loader = loader_of(Device(), packed=True, update_tokens=40_000)
    with pytest.raises(ConfigurationError, match="pass accumulate="):
        _ = loader.accumulate
    with pytest.raises(EvenstepError, match="max_steps"):
        estimate_steps(loader)
