"""What every update of a loop has to be: that of all its samples in one batch."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from ranks import Job, run
from tiny_model import TinyModel, flat
from torch.nn.functional import cross_entropy

import evenstep
from documents import Documents
from evenstep.cost import FittedCost
from loader_options import grouped

DOCUMENTS = Documents(132, longest=64, prompts=True)
EVERYTHING = list(range(len(DOCUMENTS)))


@dataclass
class Update:
    """What the ranks' optimizers step on together."""

    samples: list[int] = field(default_factory=list)
    """Of this rank."""
    steps: int = 0
    loss: float = 0.0
    gradient: torch.Tensor | None = None


def loader_of(accumulate: int | None = 1, **options: Any) -> evenstep.DataLoader:
    given: dict[str, Any] = {"policy": evenstep.Even(256), "buffer_size": 16, **options}
    return evenstep.DataLoader(DOCUMENTS, shuffle=True, accumulate=accumulate, **grouped(**given))


def sized_loader() -> evenstep.DataLoader:
    """One that chooses the steps of its updates: 4 on two ranks."""
    cost = FittedCost(per_group=2.0, per_token=1.0, per_pair=0.0)
    policy = evenstep.Even(256, cost=cost)
    return loader_of(None, policy=policy, update_tokens=448, buffer_size="auto", seed=1)


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    """Of all parameters; of those without one, zeros."""
    return flat([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])


def one_batch(model: torch.nn.Module, samples: list[int]) -> tuple[torch.Tensor, float]:
    """Gradient and loss of all samples as one padded batch."""
    model.zero_grad()
    loss = model(**evenstep.PadCollator()([DOCUMENTS[i] for i in samples])).loss
    loss.backward()
    return gradient_of(model), loss.item()


def alone(
    model: Any, data: Any, samples: list[int], smoothing: float = 0.0
) -> tuple[float, torch.Tensor]:
    """Mean loss of all tokens of documents that a model of transformers sees one by one, and its
    gradient."""
    model.zero_grad()
    model.eval()
    total, tokens = torch.zeros(()), 0
    for sample in map(data.__getitem__, samples):
        labels = sample["labels"][1:]
        logits = model(input_ids=sample["input_ids"][None]).logits[0, :-1].float()
        total = total + cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        tokens += int((labels != -100).sum())
    (total / tokens).backward()
    gradient = gradient_of(model)
    model.zero_grad()
    return float(total.detach()) / tokens, gradient


def documents_in(batch: Any) -> list[tuple[int, ...]]:
    """Tokens of the documents of a batch, padded or packed, fillers left out."""
    tokens, labels = batch["input_ids"], batch["labels"]
    if (mask := batch.get("attention_mask")) is not None:
        parts = [(row[m], own[m]) for row, own, m in zip(tokens, labels, mask.bool(), strict=True)]
    else:
        cuts = batch.get("cu_seq_lens_q")
        if cuts is None:
            cuts = [*torch.where(batch["position_ids"][0] == 0)[0].tolist(), tokens.shape[1]]
        parts = [(tokens[0, b:e], labels[0, b:e]) for b, e in pairwise(map(int, cuts))]
    return [tuple(row.tolist()) for row, own in parts if (own[1:] != -100).any()]


def samples_of(updates: list[Update]) -> list[int]:
    return [i for update in updates for i in update.samples]


def together(ranks: list[list[Update]]) -> list[list[int]]:
    """Samples of all ranks, of each update."""
    return [samples_of(list(same)) for same in zip(*ranks, strict=True)]


def of_all_ranks(ranks: list[list[list[int]]]) -> list[set[int]]:
    """Samples of every update of all ranks, none of which comes twice in one."""
    found = []
    for same in zip(*ranks, strict=True):
        found.append({i for one in same for i in one})
        assert len(found[-1]) == sum(map(len, same))
    return found


def whole_epochs(
    updates: list[set[int]], begun: Iterable[int] = (), of: Iterable[int] = range(60)
) -> list[int]:
    """How many updates every whole epoch has.

    Args:
        begun: samples of the first one that came before.
        of: the samples of an epoch.
    """
    whole, here, count = [], set(begun), 0
    for one in updates:
        assert not one & here, "a sample comes twice in an epoch"
        here |= one
        count += 1
        if here == set(of):
            whole.append(count)
            here, count = set(), 0
    return whole


def check_epoch(
    ranks: list[list[Update]],
    accumulate: int,
    *,
    max_norm: float = math.inf,
    rate: float = 0.1,
    waits_at_updates: bool = False,
) -> list[float]:
    """Checks the updates of an epoch, each on the model that those before have made.

    Args:
        waits_at_updates: ranks wait for each other there alone, so the last one is whole, too.

    Returns:
        The loss of each, which is that of all its samples.
    """
    sizes = [update.steps for update in ranks[0]]
    assert all([update.steps for update in one] == sizes for one in ranks)
    assert sizes[:-1] == [accumulate] * (len(sizes) - 1)
    most = accumulate if waits_at_updates else max(1, accumulate - 1)
    assert 0 < sizes[-1] <= most, "take other documents"
    samples = together(ranks)
    assert sorted(i for update in samples for i in update) == EVERYTHING
    model = TinyModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for indices, *updates in zip(samples, *ranks, strict=True):
        gradient, loss = one_batch(model, indices)
        for update in updates:
            assert update.gradient is not None
            assert (update.gradient - gradient).norm() < 1e-5 * gradient.norm()
        losses.append(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return losses


def check_resumed(
    whole: list[list[Update]], same: list[list[Update]], other: list[Update], *, after: int
) -> None:
    """Checks what follows a checkpoint.

    Args:
        whole: updates of the uninterrupted job, by rank.
        same: those after the checkpoint, on as many ranks.
        other: those of the rest of its epoch, on one rank.
        after: updates before the checkpoint.
    """
    rest = [updates[after:] for updates in whole]
    assert together(same) == together(rest)
    for resumed, truth in zip(same, rest, strict=True):
        for update, true_update in zip(resumed, truth, strict=True):
            assert torch.equal(update.gradient, true_update.gradient)
    before = [i for updates in whole for i in samples_of(updates[:after])]
    assert sorted(before + samples_of(other)) == EVERYTHING


def check_killed(folder: Path, whole: Any, hanging: Any, resumed: Any) -> None:
    """Checks that a job which is killed after a checkpoint resumes on two ranks and on one.

    Args:
        folder: of the jobs; `hanging` and `resumed` get a path in it, for the checkpoint.
        whole: trains two epochs; returns the updates of each.
        hanging: says "saved" once it has saved the second update, and waits.
        resumed: as `whole`, from the checkpoint.
    """

    def epochs(job: Any, name: str, ranks: int, *arguments: Any) -> list[list[list[Update]]]:
        (folder / name).mkdir()
        return run(job, ranks, *arguments, folder=folder / name)

    saved = folder / "checkpoint"
    every = [[*first, *second] for first, second in epochs(whole, "whole", 2)]
    (folder / "killed").mkdir()
    with Job(hanging, 2, saved, folder=folder / "killed") as job:
        for rank in range(2):
            job.heard(rank, "saved", within=60)
        for rank in range(2):
            job.signal(rank, signal.SIGKILL)
        job.join(within=20)
    two = [[*first, *second] for first, second in epochs(resumed, "two", 2, saved)]
    ((rest, following),) = epochs(resumed, "one", 1, saved)
    check_resumed(every, two, rest, after=2)
    assert sorted(samples_of(following)) == EVERYTHING
