"""Groups of all ranks, timed one after the other on one device.

Ranks wait for one another in every step, so a step takes as long as its slowest group. What they
send each other is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import evenstep
from benchmarks.gpu.model import Batch, Config, Decoder, decoder, train_on
from benchmarks.gpu.plans import Epoch, Texts, epochs, imbalance
from evenstep.cost import PaddedTokenCost

Say = Callable[[dict[str, Any]], None]
_LEAST_STEPS = 2


def time_steps(
    texts: Texts, config: Config, device: torch.device, seconds: float, say: Say
) -> None:
    """Says a row for each policy; where PyTorch's attention takes cuDNN, two of them again by it.

    Args:
        seconds: for all policies together, about.
    """
    model = decoder(config, device)
    planned = list(epochs(texts, config))
    again = [e for e in planned if e.batches in ("`Even`", f"fixed batches of {texts.batch_size}")]
    runs = [(epoch, False) for epoch in planned]
    if device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled():
        runs += [(epoch, True) for epoch in again]
    begin = time.monotonic()
    for number, (epoch, cudnn) in enumerate(runs):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        left = seconds - (time.monotonic() - begin)
        row = timed(epoch, model, device, left / (len(runs) - number))
        say(
            {
                "texts": texts.name,
                "ranks": texts.ranks,
                "batches": epoch.batches,
                "cudnn": cudnn,
                "padding": epoch.padding,
                "tokens_imbalance": imbalance(epoch.costs(PaddedTokenCost())),
                "predicted": imbalance(epoch.costs(evenstep.cost_of(config))),
                **row,
            }
        )


def timed(epoch: Epoch, model: Decoder, device: torch.device, seconds: float) -> dict[str, Any]:
    def run(group: list[int]) -> float:
        if not group:
            return 0.0
        batch = Batch.random(group, model.config.vocab_size, device, packed=epoch.packed)
        synchronize(device)
        begin = time.perf_counter()
        train_on(model, batch)
        synchronize(device)
        return time.perf_counter() - begin

    steps = epoch.some(0)
    groups = [group for step in steps for group in step]
    run(max(groups, key=lambda g: len(g) * max(g, default=0)))  # loads kernels and takes memory
    begin, rows = time.monotonic(), []
    for step in steps:
        rows.append([run(group) for group in step])
        if len(rows) >= _LEAST_STEPS and time.monotonic() - begin > seconds:
            break
    found = np.array(rows)
    tokens = sum(sum(group) for step in steps[: len(rows)] for group in step)
    return {
        "steps": len(rows),
        "of": len(steps),
        "measured": imbalance(found),
        "tokens_per_second": tokens / found.max(1).sum() / found.shape[1],
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
