"""From the loader to the device: tokens a second of one rank, and how long it waited for data."""

from __future__ import annotations

import time
from itertools import chain, count
from typing import Any

import numpy as np
import torch

import evenstep
from benchmarks.gpu.model import Batch, Config, decoder, train_on
from benchmarks.gpu.plans import Texts, policies
from benchmarks.gpu.steps import Say, synchronize
from benchmarks.lib.corpus import Tokens

_BATCHES = ("`Even`", "`Even`, packed")
_WARM_UP = 3


def time_loader(
    texts: Texts, config: Config, device: torch.device, seconds: float, say: Say
) -> None:
    """Says a row for fixed batches and for each `Even`."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    model, lengths = decoder(config, device), texts.lengths
    random = np.random.default_rng(0)
    dataset = Tokens.of([random.integers(config.vocab_size, size=n).tolist() for n in lengths])
    chosen = [
        (name, policy)
        for name, policy in policies(texts, evenstep.cost_of(config))
        if name in _BATCHES or name.startswith("fixed")
    ]
    for name, policy in chosen:
        loader = evenstep.DataLoader(
            dataset, policy=policy, shuffle=True, num_workers=2, pin_memory=device.type == "cuda"
        )
        try:
            say({"batches": name, **walked(loader, model, device, seconds / len(chosen))})
        finally:
            loader.close()


def walked(
    loader: evenstep.DataLoader, model: Any, device: torch.device, seconds: float
) -> dict[str, Any]:
    """The first steps are not counted: they wait for workers to start."""
    begin, steps, tokens, wait = time.perf_counter(), 0, 0, 0.0
    asked = begin
    for batch, step in chain.from_iterable(loader.steps() for _ in count()):  # of all epochs
        came = time.perf_counter()
        train_on(model, on_device(batch, device))
        synchronize(device)
        steps += 1
        if steps == _WARM_UP:
            begin = time.perf_counter()
        elif steps > _WARM_UP:
            wait += came - asked
            tokens += step.tokens
        asked = time.perf_counter()
        if steps > _WARM_UP and asked - begin > seconds:
            break
    spent = asked - begin
    return {
        "steps": steps - _WARM_UP,
        "tokens_per_second": tokens / spent,
        "waiting_for_data": wait / spent,
    }


def on_device(batch: Any, device: torch.device) -> Batch:
    tokens, labels = (batch[name].to(device, non_blocking=True) for name in ("input_ids", "labels"))
    if "cu_seqlens" not in batch:
        return Batch(tokens=tokens, labels=labels)
    bounds = batch["cu_seqlens"].to(device, torch.int32, non_blocking=True)
    longest = int(batch["max_seqlen"])
    return Batch(tokens=tokens[0], labels=labels[0], bounds=bounds, longest=longest)
