"""The size of the models and what samples cost them, for planners, which run without torch."""

from __future__ import annotations

from typing import Any

from evenstep.cost import TransformerCost

BYTES = 256
"""Tokens of a byte-level model."""

LAYERS, HIDDEN = 2, 64
SHAPE: dict[str, Any] = {"layers": LAYERS, "hidden_size": HIDDEN, "heads": 2}
"""The shape of the models: about 0.1 million parameters, so that four of them train on a laptop."""


def gpt_cost(vocabulary: int = BYTES) -> TransformerCost:
    """The cost of a document in the language model, by its length."""
    return TransformerCost(**SHAPE, ffn_size=4 * HIDDEN, vocab_size=vocabulary, gated=False)
