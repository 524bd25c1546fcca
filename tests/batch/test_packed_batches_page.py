"""The code of docs/packing.md runs, and trains as every document alone would."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy

import evenstep
from evenstep.batch import PackCollator, attention_mask
from page_code import run_page
from tiny_causal import (
    TinyCausal,
    by_mask,
    by_pieces,
    documents,
    gradient,
    one_at_a_time,
    tiny_qwen,
)

SAMPLES = documents([5, 1, 9, 3, 3, 12, 2, 7, 1, 4])


class Watched:
    """A loader of packed rows that remembers which documents it gave."""

    def __init__(self) -> None:
        self.given: list[tuple[int, ...]] = []

    def steps(self) -> Iterator[tuple[Any, evenstep.StepInfo]]:
        loader = evenstep.DataLoader(
            SAMPLES,
            policy=evenstep.Even(16, packed=True),
            collate_fn=PackCollator(pad_documents_to_multiple_of=2, pad_to_multiple_of=4),
        )
        for batch, step in loader.steps():
            self.given.append(step.indices)
            yield batch, step


def truth(model: TinyCausal, loader: Watched) -> torch.Tensor:
    """Gradient of the mean losses of the steps, every document alone."""
    assert len(loader.given) > 2
    assert sorted(i for indices in loader.given for i in indices) == list(range(len(SAMPLES)))
    total = torch.zeros(())
    for indices in loader.given:
        samples = [SAMPLES[i] for i in indices]
        supervised = sum(int((sample["labels"][1:] != -100).sum()) for sample in samples)
        total = total + one_at_a_time(model, samples) / max(supervised, 1)
    return total


run = partial(run_page, "packing.md")


def test_with_scaled_dot_product_attention():
    tiny, loader = TinyCausal(), Watched()
    run(
        "Scaled dot-product attention",
        loader=loader,
        torch=torch,
        model=lambda tokens, positions, mask: tiny(tokens, positions, by_mask(mask)),
    )
    torch.testing.assert_close(gradient(tiny), truth(tiny, loader))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_with_flex_attention():
    batch = PackCollator()(SAMPLES)
    q, k, v = torch.randn(3, 1, 2, batch["input_ids"].shape[1], 8)
    names = run("FlexAttention", batch=batch, query=q, key=k, value=v, attention=flex_attention)
    torch.testing.assert_close(names["output"], by_mask(attention_mask(batch))(q, k, v))


def test_with_hugging_face():
    model, loader = tiny_qwen().double(), Watched()
    run("Hugging Face", loader=loader, model=model)
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    for indices in loader.given:
        losses = []
        for sample in (SAMPLES[i] for i in indices):
            logits = model(input_ids=sample["input_ids"][None], use_cache=False).logits[0, :-1]
            losses.append(cross_entropy(logits, sample["labels"][1:], reduction="none"))
        supervised = sum(int((SAMPLES[i]["labels"][1:] != -100).sum()) for i in indices)
        (torch.cat(losses).sum() / max(supervised, 1)).backward()
    alone = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)  # its loss is in float32


def test_with_megatron():
    tiny, loader = TinyCausal(), Watched()

    def model(
        tokens: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: None,
        *,
        labels: torch.Tensor,
        loss_mask: torch.Tensor,
        packed_seq_params: Any,
    ) -> torch.Tensor:
        """A loss per token, as Megatron's GPT model gives."""
        if not isinstance(packed_seq_params, dict):
            packed_seq_params = vars(packed_seq_params)
        bounds = packed_seq_params["cu_seqlens_q"]
        attend = by_pieces(bounds[:-1].tolist(), bounds.diff().tolist())
        logits = tiny(tokens, position_ids, attend)
        return cross_entropy(logits[0], labels.clamp(min=0)[0], reduction="none")[None]

    run("Megatron-LM", loader=loader, model=model)
    torch.testing.assert_close(gradient(tiny), truth(tiny, loader))


def test_with_torchtitan():
    tiny, loader = TinyCausal(), Watched()
    for inputs, labels in run("torchtitan", loader=loader)["batches"]():
        tokens, positions = inputs["input"], inputs["positions"]
        document = (positions[0] == 0).cumsum(0)
        attend = by_mask((document[:, None] == document).tril())
        logits = tiny(tokens, positions, attend)[0]
        loss = cross_entropy(logits, labels[0], reduction="sum")
        (loss / (labels != -100).sum().clamp(min=1)).backward()
    torch.testing.assert_close(gradient(tiny), truth(tiny, loader))


def test_padding():
    run("Padding", PackCollator=PackCollator)
