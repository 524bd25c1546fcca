from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.profile import ModelShape, Timing, measure_layer, timer
from evenstep.tools.profile.device import choose_device, choose_dtype
from evenstep.tools.profile.layer_measure import lengths_up_to, measure_upward

LENGTHS = [128, 256, 512, 1024, 2048]


def times(attention: float, rest: float) -> tuple[Timing, Timing]:
    first, second = (
        Timing(seconds=seconds, low=seconds, high=seconds, repeats=3)
        for seconds in (attention, rest)
    )
    return first, second


@given(st.integers(128, 2**21))
def test_lengths_double_and_end_with_the_longest(max_length: int) -> None:
    lengths = lengths_up_to(max_length)
    assert lengths[-1] == max_length
    assert 4 <= len(lengths) <= 9
    assert all(length % 16 == 0 for length in lengths[:-1])
    assert lengths == sorted(set(lengths))
    assert all(2 * short <= long < 4 * short for short, long in pairwise(lengths))


@pytest.mark.parametrize("max_length", [127, 0, -1])
def test_lengths_too_short_for_a_fit_are_refused(max_length: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 128"):
        lengths_up_to(max_length)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_running_out_of_memory_is_survived_and_said(error: Exception) -> None:
    tried = []

    def time_length(length: int, share: float, limit: float) -> tuple[Timing, Timing]:
        tried.append(length)
        if length >= 1024:
            raise error
        return times(1e-6, 1e-6)

    found = measure_upward(LENGTHS, time_length, seconds=60)
    assert tried == LENGTHS[:4]
    assert [m.outcome for m in found] == ["ok", "ok", "ok", "out of memory", "skipped"]
    assert [m.length for m in found] == LENGTHS
    assert found[3].detail == str(error).partition("\n")[0]
    assert found[4].detail == "1,024 already ran out of memory"
    assert found[3].attention is found[3].rest is None


def test_other_failures_are_raised() -> None:
    def time_length(length: int, share: float, limit: float) -> tuple[Timing, Timing]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        measure_upward(LENGTHS, time_length, seconds=60)


def test_lengths_that_would_take_too_long_are_not_begun() -> None:
    now = 0.0

    def time_length(length: int, share: float, limit: float) -> tuple[Timing, Timing]:
        nonlocal now
        attention, rest = times((length / 128) ** 2, length / 128)
        now += 6 * (attention.seconds + rest.seconds)
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
    assert [m.outcome for m in found] == ["ok", "ok", "ok", "skipped", "skipped"]
    assert "72 s do not fit in the 3.3e+02 s left" in found[3].detail
    assert found[4].detail == "1,024 would already have taken too long"
    assert reported == [(done, 5) for done in range(1, 6)]
    now = 0.0
    assert measure_upward(LENGTHS, time_length, seconds=2500, clock=clock)[-1].outcome == "ok"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_small_layer_is_measured_on_this_machine(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer, "_REPEATS", (3, 4))
    shape = ModelShape(layers=3, hidden_size=32, heads=4, ffn_size=48, kv_heads=2)
    device = choose_device("cpu")
    found = measure_layer(shape, device=device, dtype=dtype, max_length=128, seconds=60)
    assert [m.length for m in found] == [16, 32, 64, 128]
    for m in found:
        assert m.outcome == "ok"
        for part in (m.attention, m.rest):
            assert part is not None
            assert 0 < part.low <= part.seconds <= part.high
            assert part.repeats == 4


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
