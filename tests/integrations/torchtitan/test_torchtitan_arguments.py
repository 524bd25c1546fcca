"""What an EvenDataLoader hands out and refuses, without torchtitan's Trainer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan.config", reason="torchtitan is not installed")

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError, SampleError
from evenstep.integrations.torchtitan import EvenDataLoader

pytestmark = pytest.mark.integrations
DOCUMENTS = Documents(30, longest=64, prompts=True)


def build(longest: int = 64, **options: Any) -> EvenDataLoader:
    config = EvenDataLoader.Config(make_dataset=lambda tokenizer, longest: DOCUMENTS, **options)
    return config.build(
        dp_world_size=1, dp_rank=0, tokenizer=None, seq_len=longest, local_batch_size=2
    )


def test_rows_hold_as_many_tokens_as_torchtitans_own_batches() -> None:
    loader = build(epochs=1)
    rows = [inputs["input"].shape[1] for inputs, _ in loader]
    assert sum(rows) == DOCUMENTS.lengths.sum()
    assert max(rows) <= 2 * 64
    loader.close()


def test_labels_are_those_of_the_next_tokens_of_a_document() -> None:
    loader = build(epochs=1, policy=evenstep.Even(128))
    for inputs, labels in loader:
        tokens, positions = inputs["input"], inputs["positions"]
        assert tokens.shape == positions.shape == labels.shape
        kept = labels[:, :-1] != -100
        assert torch.equal(labels[:, :-1][kept], tokens[:, 1:][kept])
        assert (positions[:, 1:][kept] > 0).all()  # not the first of the next document
        assert (labels[:, -1] == -100).all()
    loader.close()


def test_a_sample_without_position_is_refused_by_name() -> None:
    loader = build(longest=16, epochs=1)
    with pytest.raises(SampleError, match=r"sample \d+: it has \d+ tokens.* for 16"):
        list(loader)
    loader.close()


def test_a_policy_that_pads_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give a policy with packed=True"):
        build(policy=evenstep.TokenBudget(128))


def test_padding_of_a_row_stays_within_the_positions() -> None:
    collate = evenstep.PackCollator(pad_to_multiple_of=512)
    loader = build(epochs=1, options={"collate_fn": collate})
    for inputs, labels in loader:
        assert inputs["input"].shape == labels.shape == (1, 512)
        assert inputs["positions"].max() < 64
    loader.close()
