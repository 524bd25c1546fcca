"""A job with the settings that are advised does what the advice predicts, by its own step log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import Rank, run
from torch.utils.data import Dataset

import evenstep
from evenstep.cost import UNKNOWN_MODEL
from evenstep.plan.policies.by_name import POLICIES
from evenstep.tools.advise import LengthSample, advise, set_up
from evenstep.tools.advise.model_on_gpu import Way
from evenstep.tools.simulate import sample_lengths

SAMPLES = 4000


class OfLengths(Dataset[dict[str, Any]]):
    def __init__(self, lengths: np.ndarray[Any, Any]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.zeros(int(self.lengths[index]), dtype=torch.long)}


def train(rank: Rank, lengths: np.ndarray[Any, Any], log: str, options: dict[str, Any]) -> None:
    loader = evenstep.DataLoader(OfLengths(lengths), shuffle=True, step_log=log, **options)
    for _ in loader.steps():
        pass
    loader.close()


@pytest.mark.parametrize(
    ("data", "ranks", "packed", "fits"),
    [
        ("ultrachat", 1, False, None),
        ("ultrachat", 2, False, None),
        ("mm-mix", 2, False, None),
        ("llava", 1, False, None),
        ("ultrachat", 2, True, None),
        ("mm-mix", 1, True, None),
        ("ultrachat", 2, False, 20_000),
        ("llava", 2, True, 20_000),
    ],
)
def test_a_job_does_what_the_advice_says(
    tmp_path: Path, data: str, ranks: int, packed: bool, fits: int | None
) -> None:
    lengths = sample_lengths(data, SAMPLES, 0)
    sample = LengthSample(name=data, lengths=lengths, total=SAMPLES, longest=None, how="")
    known: dict[str, Any] = (
        {} if fits is None else {"fits": [Way(fits, False, "")], "accumulate": 4}
    )
    setup = set_up(sample, world_size=ranks, batch_size=8, **known)
    told = advise(sample, POLICIES, setup=setup, cost=UNKNOWN_MODEL, packed=packed)
    policy = evenstep.Even(setup.max_tokens, target_tokens=setup.target_tokens, packed=packed)
    options = {"policy": policy, "update_tokens": setup.update_tokens}
    run(train, ranks, lengths, str(tmp_path / "log"), options, folder=tmp_path, within=90)

    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    steps = [line for line in lines if "tokens" in line]
    tokens, updates = (sum(step[k] for step in steps) for k in ("tokens", "ends_update"))
    padding = 1 - tokens / sum(step["padded_tokens"] for step in steps)
    predicted = told.prediction(told.recommendation.policy).figures
    assert padding == pytest.approx(predicted["padding"], abs=0.01)
    assert tokens / updates == pytest.approx(predicted["tokens_per_update"], rel=0.05)
    cost = np.array([step["cost"] for step in steps])
    imbalance = cost @ [step["imbalance"] for step in steps] / cost.sum()
    assert imbalance == pytest.approx(predicted["imbalance"], abs=0.02)
