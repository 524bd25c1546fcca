"""Ranks exchange the sequences of an update: each once, there and back; and a rank dies."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Job, Rank, run_all

from evenstep.errors import ConfigurationError, MismatchError, PeerError, SampleError
from evenstep.rebalance import Rebalancer

RANKS = 4
WITHIN = 60.0  # seconds; a hang takes longer
MAX_TOKENS = 96


def rollouts(rank: int) -> list[dict[str, Any]]:
    """This rank's sequences; their first token says whose they are."""
    rng = np.random.default_rng(rank)
    return [
        {
            "input_ids": torch.tensor([100 * rank + n, *rng.integers(0, 9, size)]),
            "advantage": float(rng.normal()),
            "prompt": f"rank {rank}",
        }
        for n, size in enumerate(rng.integers(1, 90, 6 + 3 * rank))
    ]


def exchange(rank: Rank) -> Any:
    own = rollouts(rank.rank)
    update = Rebalancer(max_tokens=MAX_TOKENS).rebalance(own)
    known = {int(s["input_ids"][0]): s for r in range(RANKS) for s in rollouts(r)}
    for rows in update.micro_batches:
        assert sum(len(row["input_ids"]) for row in rows) <= MAX_TOKENS
        for row in rows:
            truth = known[int(row["input_ids"][0])]
            assert torch.equal(row["input_ids"], truth["input_ids"])
            assert (row["advantage"], row["prompt"]) == (truth["advantage"], truth["prompt"])
    computed = [[row["input_ids"].double() * 2 for row in rows] for rows in update.micro_batches]
    back = update.restore(computed)
    assert len(back) == len(own)
    for value, sample in zip(back, own, strict=True):
        assert torch.equal(value, sample["input_ids"].double() * 2)
    taken = [int(row["input_ids"][0]) for rows in update.micro_batches for row in rows]
    scales = {mean: update.loss_scales(mean) for mean in ("token", "sequence")}
    return taken, len(update.micro_batches), scales, update.plan.imbalance


def gradient(rank: Rank) -> None:
    """The gradient that ranks average is that of one batch of all sequences."""
    weight = torch.zeros(110 * RANKS, dtype=torch.float64, requires_grad=True)

    def losses(row: dict[str, Any]) -> torch.Tensor:  # of each token
        tokens = row["input_ids"]
        return ((weight[tokens] - tokens % 7) ** 2) * row["advantage"]

    every = [s for r in range(RANKS) for s in rollouts(r)]
    update = Rebalancer(max_tokens=MAX_TOKENS).rebalance(rollouts(rank.rank))
    means = {
        "token": lambda rows: torch.cat([losses(row) for row in rows]).mean(),
        "sequence": lambda rows: torch.stack([losses(row).mean() for row in rows]).mean(),
    }
    for name, mean in means.items():
        weight.grad = None
        mean(every).backward()
        assert weight.grad is not None
        expected, weight.grad = weight.grad, None
        for rows, scale in zip(update.micro_batches, update.loss_scales(name), strict=True):
            if rows:
                (mean(rows) * scale).backward()
        dist.all_reduce(weight.grad)
        torch.testing.assert_close(weight.grad / RANKS, expected, rtol=1e-12, atol=1e-12)


def wrong(rank: Rank, what: str) -> str:
    balancer, sequences = Rebalancer(max_tokens=MAX_TOKENS), rollouts(rank.rank)
    options: dict[str, Any] = {}
    if what == "too long" and rank.rank == 2:
        sequences[1]["input_ids"] = torch.zeros(200, dtype=torch.int64)
    elif what == "no tokens" and rank.rank == 1:
        del sequences[0]["input_ids"]
    elif what == "prompts" and rank.rank == 3:
        options["prompts"] = [1] * len(sequences)
    elif what == "limit" and rank.rank == 0:
        balancer = Rebalancer(max_tokens=97)
    elif what == "few":
        sequences = sequences[:1] if rank.rank == 0 else []
    with pytest.raises((SampleError, ConfigurationError, MismatchError)) as error:
        balancer.rebalance(sequences, **options)
    return f"{type(error.value).__name__}: {error.value}"


WRONG = {
    "too long": "SampleError: sequence 16 has 200 tokens, over max_tokens=96",
    "no tokens": "SampleError: rank 1: ",
    "prompts": "MismatchError: rank 0 rebalances with ",
    "limit": "MismatchError: rank 0 rebalances with max_tokens=97",
    "few": "ConfigurationError: 1 sequences are fewer than ranks=4",
}


def everything_wrong(rank: Rank) -> list[str]:
    return [wrong(rank, what) for what in WRONG]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """[functions, ranks]"""
    folder = tmp_path_factory.mktemp("ranks")
    return run_all(
        everything_wrong, exchange, gradient, world_size=RANKS, folder=folder, within=WITHIN
    )


def test_what_is_wrong_on_one_rank_is_the_same_error_on_all(found: list[list[Any]]) -> None:
    for what, said in zip(WRONG, zip(*found[0]), strict=True):
        assert len(set(said)) == 1, what
        assert said[0].startswith(WRONG[what])


def test_each_sequence_is_trained_on_once_and_its_results_return(found: list[list[Any]]) -> None:
    """The gradient, too, is compared on each rank."""
    taken = [identity for each, _, _, _ in found[1] for identity in each]
    assert sorted(taken) == sorted(
        int(s["input_ids"][0]) for rank in range(RANKS) for s in rollouts(rank)
    )
    assert len({count for _, count, _, _ in found[1]}) == 1
    for mean in ("token", "sequence"):
        assert sum(sum(scales[mean]) for _, _, scales, _ in found[1]) == pytest.approx(RANKS)
    assert max(imbalance for *_, imbalance in found[1]) < 1.2


def until_one_dies(rank: Rank) -> str:
    balancer = Rebalancer(max_tokens=MAX_TOKENS)
    balancer.rebalance(rollouts(rank.rank))
    rank.say("ready")
    try:
        while True:
            update = balancer.rebalance(rollouts(rank.rank))
            update.restore([[1] * len(rows) for rows in update.micro_batches])
    except PeerError as error:
        return str(error)


def test_a_rank_that_is_killed_is_an_error_on_all_others(tmp_path: Path) -> None:
    with Job(until_one_dies, RANKS, folder=tmp_path) as job:
        for number in range(RANKS):
            job.heard(number, "ready", within=WITHIN)
        job.signal(1, signal.SIGKILL)
        outcomes = job.join(WITHIN)
    for number in (0, 2, 3):
        said = str(outcomes[number].value)
        # What it had not read yet, its system answers with a reset.
        assert re.search("rank 1 (died|reset a connection: it has died)", said)
