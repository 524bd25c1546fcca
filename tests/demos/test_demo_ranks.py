"""What demos are made of: ranks in real processes, and the model."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from evenstep.batch import PadCollator
from evenstep_demos.models import PaddedGPT
from evenstep_demos.ranks import RankFailedError, run_ranks


def one_is_killed(folder: Path, culprit: int) -> None:
    (folder / f"{os.getpid()}").touch()
    dist.barrier()
    if dist.get_rank() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _gone(pids: list[int]) -> bool:
    """Waits for processes that are on their way out."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_a_killed_rank_is_named_and_its_peer_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Forked, for ranks that are spawned import torch: the whole demo has such ranks."""
    forked = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forked)
    with pytest.raises(RankFailedError, match="rank 1 failed: killed by SIGKILL"):
        run_ranks(one_is_killed, 2, tmp_path, 1)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    assert _gone(pids)


@pytest.fixture
def model() -> PaddedGPT:
    torch.manual_seed(0)
    return PaddedGPT(vocab_size=50, hidden_size=16, heads=2)


def _samples(*lengths: int) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        {"input_ids": tokens, "labels": tokens}
        for tokens in (torch.randint(1, 50, (n,), generator=draw) for n in lengths)
    ]


def test_padding_changes_no_loss(model: PaddedGPT) -> None:
    samples = _samples(3, 17, 32, 2)
    batch = PadCollator()(samples)
    alone = torch.stack([model(s["input_ids"][None], s["labels"][None]) for s in samples])
    counts = torch.tensor([len(s["labels"]) - 1 for s in samples])
    together = model(batch["input_ids"], batch["labels"])
    torch.testing.assert_close(together, (alone * counts).sum() / counts.sum())


def test_no_token_is_predicted_from_itself_or_later_ones(model: PaddedGPT) -> None:
    tokens = _samples(20)[0]["input_ids"][None]
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 50
    labels = torch.full_like(tokens, -100)
    labels[0, :12] = tokens[0, :12]
    assert model(tokens, labels).item() == model(changed, labels).item()
    labels[0, 13] = tokens[0, 13]
    assert model(tokens, labels).item() != model(changed, labels).item()
