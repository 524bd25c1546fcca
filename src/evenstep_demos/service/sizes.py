"""How big the models are and what they cost, for planners, which need no torch to know."""

from __future__ import annotations

from evenstep.cost import TransformerCost

__all__ = ["BYTES", "HEADS", "HIDDEN", "LAYERS", "gpt_cost"]

BYTES = 256
"""Tokens of a byte-level model."""

LAYERS, HIDDEN, HEADS = 2, 64, 2
"""Of the language model: about 0.1 million parameters, so that four of them train on a laptop."""


def gpt_cost(vocabulary: int = BYTES) -> TransformerCost:
    """What a document costs the language model, by its length."""
    return TransformerCost(
        layers=LAYERS,
        hidden_size=HIDDEN,
        heads=HEADS,
        ffn_size=4 * HIDDEN,
        vocab_size=vocabulary,
        gated=False,
    )
