"""A step of several micro-batches: a list of batches, one StepInfo, scales that add up."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import evenstep
from documents import Documents
from loader_options import grouped
from worlds import Arbitrary

POLICY = Arbitrary(2, micro_batches=3)


def make(policy=POLICY, **options) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(50, prompts=True),
        policy=policy,
        shuffle=True,
        **grouped(buffer_size=12, **options),
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_is_a_list_that_holds_the_samples_of_its_step(num_workers) -> None:
    seen = Counter()
    for batches, step in make(num_workers=num_workers).steps():
        assert len(batches) == len(step.loss_scales) == 3
        real = [batch for batch, scale in zip(batches, step.loss_scales) if scale]
        identities = [i for batch in real for i in batch["identity"].tolist()]
        assert identities == list(step.indices)
        assert step.padded_tokens == sum(batch["input_ids"].numel() for batch in real)
        supervised = [int((batch["labels"][:, 1:] != -100).sum()) for batch in real]
        expected = np.array(supervised) / step.global_supervised_tokens
        assert np.array(step.loss_scales[: len(real)]) == pytest.approx(expected)
        assert sum(step.loss_scales) == pytest.approx(step.loss_scale)
        assert not any(step.loss_scales[len(real) :])
        seen.update(identities)
    assert seen == Counter(range(50))


def take_apart(samples):
    labels = [sample.pop("labels") for sample in samples]
    batch = evenstep.PadCollator()(samples)
    return {**batch, "first": torch.tensor([int(label[0]) for label in labels])}


@pytest.mark.parametrize("num_workers", [1])
def test_a_collate_function_may_take_its_samples_apart(num_workers) -> None:
    loader = make(num_workers=num_workers, collate_fn=take_apart)
    fillers = sum(scale == 0 for _, step in loader.steps() for scale in step.loss_scales)
    assert fillers > 0
