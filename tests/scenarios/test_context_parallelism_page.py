"""The code of docs/context-parallelism.md runs on 2 x 2 ranks, and trains as one process does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import evenstep
from documents import VOCABULARY, Documents
from page_code import run_page

DOCUMENTS = Documents(60, longest=150, prompts=True, seed=3)


run_block = partial(run_page, "context-parallelism.md")


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, size]."""
    rates = 0.3 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)
    angles = positions[:, None, None] * rates
    low, high = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Model(nn.Module):
    """With two of the page's attention layers."""

    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)

        def rotary(x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return rotated(x[0], position_ids[0])[None]

        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(layer(16, 4, 2, rotary) for _ in range(2))
        self.head = nn.Linear(16, VOCABULARY)
        self.double()

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, plan: Any) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x, positions, plan))
        return self.head(x)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(rank: Rank) -> tuple[torch.Tensor, list[evenstep.StepInfo]]:
    """The page as it is. Gives the parameters at the end, and the steps."""
    model, steps = Model(run_block("In a model")["Attention"]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    class Watched(evenstep.DataLoader):
        def steps(self) -> Any:
            for batch, step in super().steps():
                steps.append(step)
                yield batch, step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evenstep, "DataLoader", Watched)
        names = {"device": "cpu", "dataset": DOCUMENTS, "context": 150, "optimizer": optimizer}
        run_block("The loop", model=model, **names)
    return flat(model), steps


def alone(steps: list[tuple[evenstep.StepInfo, ...]]) -> torch.Tensor:
    """Parameters after the same steps in one process, every document by itself."""
    layer = run_block("In a model")["Attention"]
    layer.forward.__globals__["attention"] = plain
    model = Model(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in steps:
        samples = [DOCUMENTS[i] for info in step for i in info.indices or ()]
        losses, supervised = [], 0
        for sample in samples:
            tokens, labels = sample["input_ids"], sample["labels"][1:]
            logits = model(tokens[None], torch.arange(len(tokens))[None], None)[0, :-1]
            losses.append(cross_entropy(logits, labels, reduction="sum"))
            supervised += int((labels != -100).sum())
        (torch.stack(losses).sum() / max(supervised, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: None) -> torch.Tensor:
    parts = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True).transpose(1, 2)


def test_the_page_trains_as_one_process_does(tmp_path: Path) -> None:
    trained = run(train, 4, folder=tmp_path, within=90)
    parameters, steps = zip(*trained)
    assert len(steps[0]) > 2
    assert all(torch.equal(parameters[0], other) for other in parameters[1:])
    assert [info.indices for info in steps[0]] == [info.indices for info in steps[1]]
    # One rank of each data-parallel group.
    expected = alone(list(zip(steps[0], steps[2])))
    torch.testing.assert_close(parameters[0], expected, rtol=1e-9, atol=1e-9)
