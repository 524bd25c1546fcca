from __future__ import annotations

import pytest
import torch

from evenstep.tools.profile.layer_parts import Layer, LayerParts
from evenstep.tools.profile.model_shape import ModelShape

SHAPES = [
    ModelShape(layers=2, hidden_size=32, heads=4, ffn_size=48),
    ModelShape(layers=2, hidden_size=32, heads=4, ffn_size=48, kv_heads=2, gated=False),
    ModelShape(layers=2, hidden_size=32, heads=4, ffn_size=48, kv_heads=1, causal=False),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_and_the_rest_together_are_the_whole_layer(shape: ModelShape) -> None:
    torch.manual_seed(0)
    layer = Layer(shape, device="cpu", dtype=torch.float64)
    parts = LayerParts(layer, 24)
    x = parts.x.detach().requires_grad_()
    out = layer(x, parts.rotation)
    whole = torch.autograd.grad(out, (x, *layer.parameters()), parts.gradient)
    inputs, _, *weights = parts.rest()
    for part, of_whole in zip([inputs, *weights], whole, strict=True):
        torch.testing.assert_close(part, of_whole)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_weights_are_those_that_the_cost_in_operations_counts(shape: ModelShape) -> None:
    layer = Layer(shape, device="cpu", dtype=torch.float32)
    products = sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    assert shape.operations.per_token == 6 * shape.layers * products


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_token_sees_later_ones_only_if_not_causal(shape: ModelShape) -> None:
    torch.manual_seed(0)
    layer = Layer(shape, device="cpu", dtype=torch.float64)
    parts = LayerParts(layer, 16)
    changed = parts.x.detach().clone()
    changed[:, -1] *= -1
    difference = layer(changed, parts.rotation) - layer(parts.x, parts.rotation)
    assert bool(difference[:, :-1].abs().max() < 1e-12) == shape.causal
