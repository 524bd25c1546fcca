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
from evenstep.tools.profile.model_on_device import choose_device, choose_dtype
from evenstep.tools.profile.timer import time_in_turn

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


def test_lengths_that_would_take_too_long_are_not_begun(freed: list[bool]) -> None:
    now = 0.0

    def time_length(length: int, share: float, limit: float) -> tuple[float, float]:
        nonlocal now
        attention, rest = (length / 128) ** 2, length / 128
        now += 6 * (attention + rest)
        return attention, rest

    def clock() -> float:
        return now

    # 12, 36 and 120 seconds are spent; the next would take 432.
    reported: list[tuple[int, int]] = []
    found = measure_upward(
        LENGTHS,
        time_length,
        seconds=500,
        progress=lambda done, total: reported.append((done, total)),
        clock=clock,
    )
    assert [m.seconds is None for m in found] == [False] * 3 + [True] * 2
    assert "72 s do not fit in the 3.3e+02 s left" in found[3].why_not
    assert reported == [(done, 5) for done in range(1, 6)]
    now = 0.0
    assert measure_upward(LENGTHS, time_length, seconds=2500, clock=clock)[-1].seconds


def test_a_small_layer_is_measured_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_REPEATS", (3, 4))
    shape = ModelShape(layers=3, hidden_size=32, heads=4, ffn_size=48, kv_heads=2)
    device = choose_device("cpu")
    found = measure_layer(shape, device=device, dtype="bf16", max_length=256, seconds=60)
    assert [m.length for m in found] == [16, 32, 64, 128, 256]
    assert all(part > 0 for m in found for part in m.seconds or (0,))
    with pytest.raises(ConfigurationError, match="at least 256"):
        measure_layer(shape, device=device, dtype="bf16", max_length=255, seconds=60)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    shape = ModelShape(layers=1, hidden_size=64, heads=4, ffn_size=96)
    device = choose_device("cpu")
    with pytest.raises(ConfigurationError, match="must be positive and finite"):
        measure_layer(shape, device=device, dtype="fp32", max_length=256, seconds=seconds)


def test_the_dtype_is_that_of_a_training_on_the_device() -> None:
    device = choose_device("cpu")
    assert choose_dtype(None, device) == "fp32"
    assert choose_dtype("fp16", device) == "fp16"
    with pytest.raises(ConfigurationError, match=r"dtype='int8' must be one of bf16, fp16, fp32"):
        choose_dtype("int8", device)


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="must be auto, cpu or cuda"):
        choose_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").kind == "cpu"
    with pytest.raises(ConfigurationError, match="finds no CUDA device"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 0}, "layers=0"),
        ({"kv_heads": 3}, "kv_heads=3 must divide"),
        ({"hidden_size": 60}, "hidden_size=60 over heads=4"),
    ],
)
def test_shapes_that_no_model_has_are_refused(fields: dict[str, int], message: str) -> None:
    right = {"layers": 1, "hidden_size": 64, "heads": 4, "ffn_size": 96}
    with pytest.raises(ConfigurationError, match=message):
        ModelShape(**{**right, **fields})


# Timing


class Clock:
    """Time passes only in functions."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def function(self, *seconds: float) -> Any:
        """Takes so long at its first calls, and as long as the last at all others."""

        def run() -> None:
            self.now += seconds[min(run.calls, len(seconds) - 1)]
            run.calls += 1

        run.calls = 0
        return run


def test_the_warm_up_counts_for_nothing() -> None:
    clock = Clock()
    slow_first, steady = clock.function(100, 2), clock.function(3, 3, 9, 4)
    found = time_in_turn(
        [slow_first, steady], synchronize=lambda: None, share=0, limit=1000, clock=clock
    )
    assert found == [2, 4], "medians"


@pytest.mark.parametrize(
    ("share", "limit", "repeats"), [(0, 1000, 3), (10, 1000, 9), (1e6, 1e6, 50), (10, 0, 1)]
)
def test_repeats_end_with_the_share_but_for_the_fewest_and_the_limit(
    share: float, limit: float, repeats: int
) -> None:
    clock = Clock()
    function = clock.function(1)
    time_in_turn([function], synchronize=lambda: None, share=share, limit=limit, clock=clock)
    assert function.calls == 1 + repeats


def test_what_a_call_launches_is_waited_for_within_its_time() -> None:
    clock = Clock()
    launched = 0

    def launch() -> None:
        nonlocal launched
        launched += 1

    def synchronize() -> None:
        nonlocal launched
        clock.now += 7 * launched
        launched = 0

    (seconds,) = time_in_turn([launch], synchronize=synchronize, share=0, limit=1e9, clock=clock)
    assert seconds == 7


def test_fast_functions_are_called_several_times_per_repeat() -> None:
    clock = Clock()
    fast = clock.function(0.001)
    (seconds,) = time_in_turn([fast], synchronize=lambda: None, share=0, limit=1e9, clock=clock)
    assert seconds == pytest.approx(0.001)
    assert fast.calls > 3 * 3


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
