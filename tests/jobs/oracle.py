"""What a job must come to: every sample once, and in each update the gradient of its samples one by
one, without padding; or a clear refusal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from evenstep.errors import EvenstepError
from jobs.forms import examples_of
from jobs.job import Job
from jobs.kinds import KINDS, shifted_loss
from jobs.refusals import expected_refusal
from jobs.training import gradient_of, model_of, train

CLOSE = 1e-5


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    job: Job
    outcome: str
    """"right", "refused" or "wrong"."""
    text: str = ""
    """What was refused, or is wrong."""

    def __str__(self) -> str:
        return f'{self.outcome}: {self.text}\n    python -m jobs "{self.job}"'


@cache
def gradients_of(kind: str, labels: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Of the loss of each sample alone, times its weight."""
    model, loss_of = model_of(kind), KINDS[kind].loss
    if labels == "shifted":
        loss_of = shifted_loss
    gradients = []
    for example in examples_of(kind, labels, seed):
        if example.weight:
            (loss_of(model, KINDS[kind].of_one(example)) * example.weight).backward()
        gradients.append(gradient_of(model))
    return tuple(gradients)


def fault_of(job: Job, updates: Sequence[Sequence[int]], gradients: Sequence[torch.Tensor]) -> str:
    """What is wrong with the updates of a job, or nothing.

    Args:
        updates: numbers of the samples of each, on all ranks.
        gradients: of each, averaged over ranks.
    """
    examples = examples_of(job.kind, job.labels, job.seed)
    counts = Counter(number for update in updates for number in update)
    for number, example in enumerate(examples):
        # What fills up the updates of a trainer looks like a sample without labels.
        enough = job.entry == "trainer" and not example.weight and counts[number]
        if counts[number] != 1 and not enough:
            return f"sample {number} came {counts[number]} times"
    alone = gradients_of(job.kind, job.labels, job.seed)
    worst = 0.0
    for update, found in zip(updates, gradients, strict=True):
        weight = sum(examples[number].weight for number in update)
        truth = torch.stack([alone[number] for number in update]).sum(0) / max(weight, 1)
        error = float((found - truth).norm() / max(float(truth.norm()), 1e-6))
        if not error <= worst:  # NaN too
            worst = error
    return "" if worst <= CLOSE else f"the gradient of an update is {worst:.1e} off"


def run(job: Job, folder: Path, rank: Any = None, checks: int = 0) -> Result:
    """Trains on this rank, with the others if there are any, and checks what came of it.

    Args:
        rank: a `ranks.Rank`, where there are several.
        checks: that of them which checks gradients. The others take them to be right.
    """
    if rank is not None:
        os.environ.update(_as_launched(rank.rank, job.ranks))
    updates, outcome, text = [], "right", ""
    try:
        updates = train(job, folder)
    except EvenstepError as error:
        outcome, text = "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        outcome, text = "wrong", f"{type(error).__name__}: {error}"
    samples, gradients = [u.samples for u in updates], [u.gradient for u in updates]
    if job.ranks > 1:
        parts: list[Any] = [None] * job.ranks
        dist.all_gather_object(parts, (outcome, text, samples))
        # A rank that did not fail itself says so of another one.
        parts.sort(key=lambda part: (part[0] == "right", part[1].startswith("PeerError")))
        outcome, text, _ = parts[0]
        if outcome == "right":
            samples = [list(chain(*same)) for same in zip(*(p[2] for p in parts), strict=True)]
            if job.entry != "trainer":
                together = torch.stack(gradients)
                dist.all_reduce(together)
                gradients = list(together / job.ranks)
    if outcome == "right" and (rank is None or rank.rank == checks % job.ranks):
        text = fault_of(job, samples, gradients)
        outcome = "wrong" if text else "right"
    if outcome == "refused" and not expected_refusal(job, text):
        outcome = "wrong"
    return Result(job, outcome, text)


def _as_launched(rank: int, ranks: int) -> dict[str, str]:
    """The environment that a launcher sets; the group exists already."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(n) for name, n in own.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
