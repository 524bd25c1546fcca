"""A layer is timed, in parts, at rising lengths."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.profile import ModelShape, layer_measure, measure_layer, timer
from evenstep.tools.profile.layer_measure import Layer, LayerParts, lengths_up_to, measure_upward
from evenstep.tools.profile.model_on_device import choose_device

LENGTHS = [128, 256, 512, 1024, 2048]


@given(st.integers(256, 2**21))
def test_lengths_double_and_end_with_the_longest(max_length: int) -> None:
    lengths = lengths_up_to(max_length)
    assert lengths[-1] == max_length
    assert len(lengths) == 5
    assert all(length % 16 == 0 for length in lengths[:-1])
    assert all(2 * short <= long < 4 * short for short, long in pairwise(lengths))


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One for each time at which memory was freed, which takes long in a large process."""
    found: list[bool] = []
    monkeypatch.setattr(layer_measure, "free_memory", lambda: found.append(True))
    return found


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ],
    ids=["cuda", "cpu", "python", "another"],
)
def test_running_out_of_memory_alone_is_survived_and_said(
    error: Exception, freed: list[bool]
) -> None:
    tried = []

    def time_length(length: int, share: float, limit: float) -> tuple[float, float]:
        tried.append(length)
        if length >= 1024:
            raise error
        return 1e-6, 1e-6

    if "mat1" in str(error):
        with pytest.raises(RuntimeError, match="mat1"):
            measure_upward(LENGTHS, time_length, seconds=60)
        return
    found = measure_upward(LENGTHS, time_length, seconds=60)
    assert tried == LENGTHS[:4]
    assert freed
    assert [m.length for m in found] == LENGTHS
    assert [m.why_not for m in found] == [""] * 3 + ["out of memory at 1,024 tokens"] * 2
    assert found[3].seconds is None


def test_a_small_layer_is_measured_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_REPEATS", (3, 4))
    shape = ModelShape(layers=3, hidden_size=32, heads=4, ffn_size=48, kv_heads=2)
    device = choose_device("cpu")
    found = measure_layer(shape, device=device, dtype="bf16", max_length=256, seconds=60)
    assert [m.length for m in found] == [16, 32, 64, 128, 256]
    assert all(part > 0 for m in found for part in m.seconds or (0,))
    with pytest.raises(ConfigurationError, match="at least 256"):
        measure_layer(shape, device=device, dtype="bf16", max_length=255, seconds=60)


# The layer


@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 2, "gated": False}, {"kv_heads": 1, "causal": False}]
)
def test_the_layer_is_that_of_its_shape_and_its_parts_are_the_whole(
    options: dict[str, Any],
) -> None:
    shape = ModelShape(layers=2, hidden_size=32, heads=4, ffn_size=48, **options)
    torch.manual_seed(0)
    layer = Layer(shape, device="cpu", dtype=torch.float64)
    # Its weights are those that the cost in operations counts.
    products = sum(weight.numel() for weight in layer.parameters() if weight.ndim == 2)
    assert shape.operations.per_token == 6 * shape.layers * products
    parts = LayerParts(layer, 24)
    x = parts.x.detach().requires_grad_()
    out = layer(x, parts.rotation)
    whole = torch.autograd.grad(out, (x, *layer.parameters()), parts.gradient)
    inputs, _, *weights = parts.rest()
    for part, of_whole in zip([inputs, *weights], whole, strict=True):
        torch.testing.assert_close(part, of_whole)
    # A token sees later ones only if not causal.
    changed = x.detach().clone()
    changed[:, -1] *= -1
    difference = layer(changed, parts.rotation) - out
    assert bool(difference[:, :-1].abs().max() < 1e-12) == shape.causal
