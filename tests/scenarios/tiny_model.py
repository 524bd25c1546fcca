"""A causal transformer small enough to train in tests, called as Hugging Face models are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from documents import VOCABULARY

WIDTH = 8


class Output(NamedTuple):
    loss: torch.Tensor
    """Mean over the supervised tokens of the batch; NaN where it has none."""
    logits: torch.Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).chunk(3, dim=-1)
        return x + self.out(scaled_dot_product_attention(query, key, value, attn_mask=mask))


class TinyModel(nn.Module):
    """The same parameters each time, in float64. Takes padded and packed batches, and shifts labels
    by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
        **others: object,
    ) -> Output:
        # Padding attends to padding, or its softmax would be over nothing.
        document = attention_mask if document_ids is None else document_ids
        assert document is not None
        together = document[:, :, None] == document[:, None, :]
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x, together.tril())
        logits = self.head(torch.tanh(x))[:, :-1]
        return Output(cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()), logits)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All numbers of the tensors in one row, those that other ranks hold included."""
    whole = [t.full_tensor() if isinstance(t, DTensor) else t for t in tensors]
    return torch.cat([t.detach().flatten() for t in whole])
