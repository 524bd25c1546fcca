"""What the two runs promise, in two real processes that are started once for all of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep_demos.models import PaddedGPT
from evenstep_demos.ranks import run_ranks
from evenstep_demos.text.batches import even_batches, fixed_batches
from evenstep_demos.text.budget import ACCUMULATE
from evenstep_demos.text.prepared_text import (
    END,
    Task,
    TokenizedDocuments,
    load_tokenizer,
    train_tokenizer,
)
from evenstep_demos.text.train import GradientClock, held_out_loss

pytestmark = pytest.mark.soak  # `test_demo_run` trains, too
Send = Callable[[Any], None]
TEXTS = tuple(f"{i}:" + "ab" * (1 + 7 * i % 29) for i in range(50))


def _model(seed: int) -> PaddedGPT:
    torch.manual_seed(seed)
    return PaddedGPT(vocab_size=300, hidden_size=16, heads=2)


def _task() -> Task:
    documents = TokenizedDocuments(TEXTS, train_tokenizer(["1234567890:"], 300))
    lengths = np.array([len(documents[i]["input_ids"]) for i in range(len(TEXTS))])
    return Task(
        training=documents,
        lengths=lengths,
        held_out=documents,
        held_out_lengths=lengths,
        collate=evenstep.PadCollator(pad_token_id=END),
        model=_model,
    )


def all_in_one(send: Send, folder: str) -> None:
    """What each part sends, by its name."""
    for part in (one_epoch_of_both, evaluate):
        part(lambda told, name=part.__name__: send((name, told)))
    late_second_rank(lambda told: send(("late_second_rank", told)), folder)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    said: list[Any] = []
    run_ranks(all_in_one, 2, (str(tmp_path_factory.mktemp("ranks")),), said.append)
    return {name: [told for each, told in said if each == name] for name in dict(said)}


def one_epoch_of_both(send: Send) -> None:
    task = _task()
    ways = {
        "fixed": fixed_batches(task, 3, 0, []),
        "evenstep": even_batches(task, 96, 0, []),
    }
    for name, batches in ways.items():
        for step, part in enumerate(batches):
            mask, labels = part.batch["attention_mask"], part.batch["labels"][:, 1:]
            send((name, "counts", dist.get_rank(), part.samples, part.tokens, part.padded_tokens))
            send((name, "rows", part.batch["input_ids"].tolist(), int(mask.sum()), mask.numel()))
            send((name, step, part.loss_scale, int((labels != -100).sum()), part.ends_update))


def test_both_ways_train_on_every_sample_once_with_scales_of_the_token_mean(heard: Any) -> None:
    heard = heard["one_epoch_of_both"]
    tokenizer = load_tokenizer(_task().training.tokenizer)
    for name in ("fixed", "evenstep"):
        counts = [m[2:] for m in heard if m[:2] == (name, "counts")]
        rows = [m for m in heard if m[:2] == (name, "rows")]
        texts = [tokenizer.decode(row) for m in rows for row in m[2]]
        # The end token, which pads too, is special and not decoded.
        assert sorted(texts) == sorted(TEXTS)
        assert sum(samples for _, samples, _, _ in counts) == len(TEXTS)
        assert sum(tokens for _, _, tokens, _ in counts) == sum(m[3] for m in rows)
        assert sum(padded for _, _, _, padded in counts) == sum(m[4] for m in rows)
        steps = [sum(rank == wanted for rank, _, _, _ in counts) for wanted in (0, 1)]
        assert steps[0] == steps[1] > 3
        # The mean over ranks of scale x mean loss, in sum, is the update's token mean: W t / T.
        for update in range(0, steps[0], ACCUMULATE):
            last = min(update + ACCUMULATE, steps[0]) - 1
            parts = [m for m in heard if m[0] == name and m[1] in range(update, last + 1)]
            supervised = sum(m[3] for m in parts)
            assert len(parts) == 2 * (last + 1 - update)
            assert all(m[4] == (m[1] == last) for m in parts)
            np.testing.assert_allclose(
                [m[2] for m in parts], [2 * m[3] / supervised for m in parts]
            )


def late_second_rank(send: Send, folder: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    parallel = DistributedDataParallel(model)
    clock = GradientClock(parallel)
    flag = Path(folder) / "ready"
    if dist.get_rank() == 0:

        def tell() -> None:
            while not clock.ready:
                time.sleep(0.01)
            flag.touch()

        threading.Thread(target=tell, daemon=True).start()
    else:
        while not flag.exists():
            time.sleep(0.01)
    inputs = torch.full((2, 4), float(1 + dist.get_rank()))
    parallel(inputs).sum().backward()
    assert model.weight.grad is not None
    send(model.weight.grad.tolist())


def test_the_clock_stops_before_a_late_rank_begins_and_gradients_are_averaged(heard: Any) -> None:
    """Rank 1 begins only after rank 0's clock has stopped. A clock that ran until gradients were
    exchanged would leave both waiting for ever."""
    # Rank 0's gradient is 2 everywhere, rank 1's is 4.
    assert heard["late_second_rank"] == [[[3.0] * 4]] * 2


def evaluate(send: Send) -> None:
    task = _task()
    model, documents = task.model(0), task.held_out
    send(held_out_loss(model, task, 96))
    if dist.get_rank() == 0:
        total = count = 0.0
        with torch.no_grad():
            for i in range(len(TEXTS)):
                tokens = documents[i]["input_ids"][None]
                total += model(tokens, tokens, reduction="sum").item()
                count += tokens.numel() - 1
        send(total / count)


def test_held_out_loss_is_the_token_mean_of_all_documents_on_every_rank(heard: Any) -> None:
    losses = heard["evaluate"]
    assert len(losses) == 3
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
