"""What a job must come to: every sample once, and in each update the gradient of its samples one by
one, without padding; or a clear refusal."""

from __future__ import annotations

import logging
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
from jobs.refusals import expected_refusal, expected_warning
from jobs.training import Update, doubled, gradient_of, train

logger = logging.getLogger("evenstep")
CLOSE = 1e-5


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    job: Job
    outcome: str
    """"right", "refused", "warned" or "wrong"."""
    text: str = ""
    """What was refused, or is wrong; where nothing was so far, what was warned of."""

    def __str__(self) -> str:
        return f'{self.outcome}: {self.text}\n    python -m jobs "{self.job}"'


@cache
def gradients_of(kind: str, labels: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Of the loss of each sample alone, times its weight."""
    model, loss_of = KINDS[kind].model(), KINDS[kind].loss
    if labels == "shifted":
        loss_of = shifted_loss
    gradients = []
    for example in examples_of(kind, labels, seed):
        if example.weight:
            (loss_of(model, doubled(KINDS[kind].of_one(example))) * example.weight).backward()
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
        filled = job.entry == "trainer" and not example.weight
        if counts[number] != 1 and not (counts[number] and filled):
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


def run(job: Job, folder: Path) -> Result:
    """Trains on this process alone, and checks what came of it."""
    updates, result = trained(job, folder)
    if result.outcome != "right":
        return result
    samples, gradients = [u.samples for u in updates], [u.gradient for u in updates]
    return checked(job, samples, gradients, result.text)


def run_on_rank(job: Job, folder: Path, rank: int, *, checks: bool) -> tuple[Result, bool]:
    """Trains on this rank and the others, and checks what came of it.

    Args:
        checks: whether this rank does so. Another one takes gradients to be right.

    Returns:
        This rank's result, and whether the ranks can run more jobs.
    """
    os.environ.update(_as_launched(rank, job.ranks))
    updates, result = trained(job, folder)
    if result.outcome != "right" and (job.entry == "trainer" or job.resumed):
        # In a collective of the model or of another loader, the others wait until it has ended.
        return result, False
    parts: list[Any] = [None] * job.ranks
    try:
        dist.all_gather_object(parts, (result, [u.samples for u in updates]))
    except RuntimeError as error:
        return Result(job, "wrong", f"another rank has ended: {error}"), False
    result = first_cause([of_rank for of_rank, _ in parts])
    if result.outcome != "right":
        return result, True
    samples = [list(chain(*same)) for same in zip(*(part[1] for part in parts), strict=True)]
    gradients = [u.gradient for u in updates]
    if job.entry != "trainer":
        together = torch.stack(gradients)
        dist.all_reduce(together)
        gradients = list(together / job.ranks)
    warned = "\n".join(of_rank.text for of_rank, _ in parts)
    return checked(job, samples, gradients, warned) if checks else result, True


def first_cause(results: Sequence[Result]) -> Result:
    """The result of a job: that of the rank that failed, if one did, and not of one that says so of
    another one."""
    echoes = ("PeerError", "RuntimeError", "DistBackendError", "another rank")
    return min(results, key=lambda r: (r.outcome == "right", r.text.startswith(echoes)))


def trained(job: Job, folder: Path) -> tuple[list[Update], Result]:
    updates: list[Update] = []
    warnings = Warnings()
    try:
        with warnings:
            updates = train(job, folder)
        result = Result(job, "right", "\n".join(warnings.texts))
    except EvenstepError as error:
        text = f"{type(error).__name__}: {error}"
        result = Result(job, "refused" if expected_refusal(job, text) else "wrong", text)
    except Exception as error:
        warned = expected_warning(job, "\n".join(warnings.texts))
        result = Result(job, "warned" if warned else "wrong", f"{type(error).__name__}: {error}")
    return updates, result


def checked(
    job: Job, samples: Sequence[Sequence[int]], gradients: Sequence[Any], warned: str
) -> Result:
    fault = fault_of(job, samples, gradients)
    if fault and expected_warning(job, warned):
        return Result(job, "warned", warned)
    return Result(job, "wrong" if fault else "right", fault)


class Warnings(logging.Handler):
    """What evenstep logs, which says nothing else meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logger.addHandler(self)
        logger.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        logger.removeHandler(self)
        logger.propagate = True


def _as_launched(rank: int, ranks: int) -> dict[str, str]:
    """The environment that a launcher sets; the group exists already."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(n) for name, n in own.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
