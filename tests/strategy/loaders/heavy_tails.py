"""Profiles of sources as skewed as those of a real mixture, and layouts looked at independently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.strategy.loaders import LoaderLayout, LoaderLimits, LoadModel, SourceProfile

MIB = 1 << 20


def profiles_of(count: int, seed: int, **fixed: Any) -> list[SourceProfile]:
    """Text is cheap, images are not, and a few videos take seconds; memory is as uneven."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        seconds = float(np.clip(rng.lognormal(-6.5, 1.6), 1e-5, 2.0))
        values = {
            "read_seconds": seconds / 20,
            "prepare_seconds": seconds,
            "prepare_high": 2 * seconds,
            "send_seconds": seconds / 50,
            "handover_seconds": seconds / 10,
            "file_bytes": int(np.clip(rng.lognormal(2.0, 1.2), 0.2, 300) * MIB),
            "sample_bytes": int(np.clip(rng.lognormal(10, 2), 100, 4 * MIB)),
            "tokens": float(rng.integers(20, 2000)),
            "random_access": True,
            **fixed,
        }
        found.append(SourceProfile(source=f"s{number}", samples=16, **values))
    return found


def model_of(
    profiles: Sequence[SourceProfile], weights: Any = None, samples: int = 256, **limits: Any
) -> LoadModel:
    if weights is None:
        weights = np.ones((1, len(profiles)))
    draws = samples * weights / weights.sum(axis=1, keepdims=True)
    given = {"step_seconds": 1.0, "memory": 1024 * MIB, **limits}
    return LoadModel(profiles, draws, LoaderLimits(**given))


def broken(layout: LoaderLayout, model: LoadModel) -> list[str]:
    """What is wrong with a layout, added up source by source."""
    limits, wrong = model.limits, []
    numbers = {name: k for k, name in enumerate(model.sources)}
    parts: dict[str, list[int]] = {name: [] for name in model.sources}
    for number, loader in enumerate(layout.loaders):
        own = np.zeros(len(model.draws))
        handover, prepare = own.copy(), own.copy()
        kept = transforms = buffers = 0.0
        for share in loader.shares:
            k = numbers[share.source]
            parts[share.source].append(share.part)
            drawn = model.draws[:, k] / share.parts
            own += drawn * (model.read[k] + model.send[k])  # all sources have random access
            handover += drawn * model.handover[k]
            prepare += drawn * model.prepare[k]
            kept += model.file_bytes[k] + model.staged[k] / share.parts
            transforms += model.transform_bytes[k]
            buffers += model.buffers[k] / share.parts
        if loader.workers:
            busiest = max((own + handover).max(), prepare.max() / loader.workers)
        else:
            busiest = (own + prepare).max()
        processes = 1 + loader.workers
        memory = processes * limits.process_bytes + kept + buffers
        memory += max(loader.workers, 1) * transforms
        if busiest > limits.seconds * 1.0001:
            wrong.append(f"loader {number} takes {busiest} s")
        if memory > limits.memory * 1.0001:
            wrong.append(f"loader {number} takes {memory} bytes")
        if loader.buffer_bytes < buffers - 1:
            wrong.append(f"loader {number} has no room for its samples")
        if loader.workers > limits.workers:
            wrong.append(f"loader {number} has {loader.workers} workers")
        if not np.isclose(busiest, loader.seconds) or abs(memory - loader.memory) > 1:
            wrong.append(f"loader {number} says {loader.seconds} s, {loader.memory} bytes")
    for name, owned in parts.items():
        if sorted(owned) != list(range(len(owned))) or not owned:
            wrong.append(f"source {name} has the parts {owned}")
    return wrong
