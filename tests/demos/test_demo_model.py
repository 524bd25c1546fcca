"""The model of the demos sees no padding and nothing later."""

from __future__ import annotations

import pytest
import torch

from evenstep.batch import PadCollator
from evenstep_demos.models import PaddedGPT


@pytest.fixture
def model() -> PaddedGPT:
    torch.manual_seed(0)
    return PaddedGPT(vocab_size=50, hidden_size=16, heads=2)


def _samples(*lengths: int) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        {"input_ids": tokens, "labels": tokens}
        for tokens in (torch.randint(1, 50, (n,), generator=draw) for n in lengths)
    ]


def test_padding_changes_no_loss(model: PaddedGPT) -> None:
    samples = _samples(3, 17, 32, 2)
    batch = PadCollator()(samples)
    alone = torch.stack([model(s["input_ids"][None], s["labels"][None]) for s in samples])
    counts = torch.tensor([len(s["labels"]) - 1 for s in samples])
    together = model(batch["input_ids"], batch["labels"])
    torch.testing.assert_close(together, (alone * counts).sum() / counts.sum())


def test_no_token_is_predicted_from_itself_or_later_ones(model: PaddedGPT) -> None:
    tokens = _samples(20)[0]["input_ids"][None]
    changed = tokens.clone()
    changed[0, 12] = (tokens[0, 12] + 1) % 50
    labels = torch.full_like(tokens, -100)
    labels[0, :12] = tokens[0, :12]
    assert model(tokens, labels).item() == model(changed, labels).item()
    labels[0, 13] = tokens[0, 13]
    assert model(tokens, labels).item() != model(changed, labels).item()
