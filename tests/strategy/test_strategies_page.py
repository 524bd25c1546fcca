"""The code of docs/service.md runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import SampleTable
from evenstep.strategy import BufferedMetadata
from page_code import run_page

SOURCES = ("web", "code")
run = partial(run_page, "service.md")


def world() -> dict[str, Any]:
    rng = np.random.Generator(np.random.PCG64(0))
    count = np.arange(800)
    text = np.minimum(rng.lognormal(5.5, 1.2, 800).astype(int) + 1, 4000)
    lengths = {"text": text, "image": np.where(count % 3, rng.integers(64, 1024, 800), 0)}
    samples = SampleTable(SOURCES, count % 2, count // 2, count * 0, count // 2, lengths)
    mixture = Mixer(SOURCES, {"web": 0.7, "code": 0.3}, samples_per_step=120, seed=0)
    return {"metadata": BufferedMetadata(samples), "mixture": mixture}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return run("A strategy for text", **world())


def test_the_text_strategy_balances(told: dict[str, Any]) -> None:
    plan = told["plan"]
    assert (plan.buckets, plan.micro_batches, len(plan)) == (4, 4, 120)
    assert plan.imbalance < 1.02 < plan.imbalance_before
    assert plan.delivery.fetching.tolist() == [rank for rank in range(32) if rank % 2 == 0]


def test_the_strategy_for_images_balances_both_modules() -> None:
    names = run("A strategy for text", **world())
    names["mixture"] = world()["mixture"]
    names = run("A strategy for images and text", **names)
    plan, encoder = names["plan"], names["encoder"]
    assert plan.modality == ("text", "image")
    assert plan.imbalance < 1.02 < plan.imbalance_before
    assert encoder.buckets == 32
    assert encoder.imbalance < encoder.imbalance_before
