"""Layouts keep their limits, and are no worse than the paper's; what groups of sources need as
weights move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.service.layout_baselines import fewest_loaders, three_steps
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    ScalingLimits,
    SourceProfile,
    group_needs,
    packed,
)
from evenstep.strategy.loaders.load_model import Piece

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


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    memory=st.sampled_from([450, 700, 2000]),
    step=st.sampled_from([0.05, 0.5, 5.0]),
    times=st.integers(1, 4),
)
def test_a_layout_keeps_its_limits_or_says_what_is_short(seed, count, memory, step, times) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(count), times)
    model = model_of(profiles_of(count, seed), weights, memory=memory * MIB, step_seconds=step)
    layout = packed(model)
    wrong = broken(layout, model)
    assert bool(wrong) == bool(layout.shortages)
    assert packed(model) == layout
    assert LoaderLayout.from_dict(layout.as_dict()) == layout
    if not layout.shortages:
        assert len(layout.loaders) >= fewest_loaders(model)
        # Where the paper's rule keeps the limits at all, it needs no fewer loaders.
        paper = three_steps(model)
        assert paper.shortages or len(paper.loaders) >= len(layout.loaders)


def test_two_hundred_sources_take_fewer_loaders_than_by_the_paper() -> None:
    model = model_of(profiles_of(200, 1), samples=2048, memory=2048 * MIB, step_seconds=2.0)
    layout, paper = packed(model), three_steps(model)
    assert not broken(layout, model)
    assert fewest_loaders(model) <= len(layout.loaders)
    assert len(layout.loaders) < len(paper.loaders) or paper.shortages


def test_sources_that_are_drawn_at_other_times_share_a_loader() -> None:
    profiles = profiles_of(4, 0, prepare_seconds=0.01, read_seconds=0.0, sample_bytes=1000)
    in_turn = np.eye(4)
    together = model_of(profiles, in_turn.max(axis=0)[None] / 4, samples=280, workers=0)
    moving = model_of(profiles, in_turn, samples=70, workers=0)
    assert len(packed(together).loaders) == 4
    assert len(packed(moving).loaders) == 1


def test_a_source_that_no_loader_can_serve_is_named() -> None:
    profiles = profiles_of(3, 0, file_bytes=5 * MIB, prepare_seconds=0.001)
    slow = profiles_of(1, 0, read_seconds=1.0, random_access=False, file_bytes=MIB)[0]
    model = model_of([*profiles, replace(slow, source="slow")])
    layout = packed(model)
    assert {share.source for loader in layout.loaders for share in loader.shares} == {
        "s0",
        "s1",
        "s2",
        "slow",
    }
    (shortage,) = layout.shortages
    assert "slow" in shortage.what
    assert "s a step" in shortage.needs


def test_too_few_cores_are_said() -> None:
    model = model_of(profiles_of(5, 0, prepare_seconds=0.05), cores=2)
    layout = packed(model)
    assert any("cores" in shortage.needs for shortage in layout.shortages)
    assert any("s for a step" in shortage.remedy for shortage in layout.shortages)


def test_enough_is_enough_and_too_little_is_said() -> None:
    text, images = (
        profiles_of(1, 0, prepare_seconds=s, prepare_high=s, send_seconds=0.0)[0]
        for s in (0.0002, 0.03)
    )
    shares = np.array([0.0, 0.05, 0.1, 0.3, 0.7])  # of images
    weights = np.stack([1 - shares, shares], axis=1)
    model = model_of(
        [text, replace(images, source="images")],
        weights,
        memory=8192 * MIB,
        step_seconds=0.5,
        workers=4,
    )
    needs = group_needs(model, [[Piece(0, 1)], [Piece(1, 1)]], ScalingLimits(most_loaders=3))
    # 256 x 0.03 s x share, of which a process takes 0.4 s: 0, 1, 2, 6 and 14 of them, at most 4 a
    # loader; the first it does by itself.
    assert needs.loaders[:, 1].tolist() == [1, 1, 1, 2, 3]
    assert needs.workers[:, 1].tolist() == [0, 0, 2, 3, 4]
    assert needs.short[:, 1].tolist() == [False] * 4 + [True]
