from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.context_parallel.kernels import kernel_of, pick_backend
from evenstep.context_parallel.latency import AttentionLatency, load_latency
from evenstep.errors import ConfigurationError
from evenstep.tools.profile import Device, Timing
from evenstep.tools.profile.attention import (
    AttentionKernel,
    Heads,
    choose_kernel,
    equal_fragments,
    fit_latency,
    fragment_shapes,
    measure_shapes,
)
from evenstep.tools.profile.attention_profile import (
    AttentionProfile,
    FragmentMeasurement,
    attention_text,
)

CPU = Device(kind="cpu", name="Abacus 3000", threads=2)
CUDA = Device(kind="cuda", name="Abacus X")
LAUNCH = (1e-5, 3e-5)


def timing(seconds: float, spread: float = 0.01) -> Timing:
    low, high = (1 - spread) * seconds, (1 + spread) * seconds
    return Timing(seconds=seconds, low=low, high=high, repeats=5)


def law(**changes: Any) -> AttentionLatency:
    """Throughput is 1e12 x (queries / 128)^0.25 forward; that is exact under interpolation."""
    points = tuple(128 << power for power in range(8))
    rows = tuple(tuple((q / 128) ** 0.25 for _ in points) for q in points)
    fields: dict[str, Any] = {
        "heads": 2,
        "head_size": 64,
        "queries": points,
        "keys": points,
        "forward_tflops": rows,
        "backward_tflops": tuple(tuple(0.5 * v for v in row) for row in rows),
        "forward_launch": LAUNCH[0],
        "backward_launch": LAUNCH[1],
        "device": "Abacus X",
        "kernel": "beads",
        "dtype": "bf16",
    }
    return AttentionLatency(**{**fields, **changes})


def timed(shape: FragmentMeasurement, latency: AttentionLatency) -> FragmentMeasurement:
    """What the law gives."""
    at = (np.array([shape.queries]), np.array([shape.keys]))
    calls = shape.fragments if latency.launches == "fragment" else 1
    free = replace(latency, forward_launch=0.0, backward_launch=0.0)
    ahead = shape.fragments * float(free.passes(*at)[0, 0]) + calls * latency.forward_launch
    back = shape.fragments * float(free.passes(*at)[1, 0]) + calls * latency.backward_launch
    return replace(shape, forward=timing(ahead), both=timing(ahead + back))


def launch_alone() -> FragmentMeasurement:
    smallest = FragmentMeasurement(queries=1, keys=1)
    return replace(smallest, forward=timing(LAUNCH[0]), both=timing(sum(LAUNCH)))


def varlen() -> AttentionKernel:
    return AttentionKernel(
        name="flash",
        launches="rank",
        tile=128,
    )


@pytest.mark.parametrize("launches", ["rank", "fragment"])
def test_a_known_law_is_found_again_and_predicts_what_was_held_out(launches: str) -> None:
    true = law(launches=launches)
    kernel = replace(varlen(), launches=launches)
    shapes = [timed(shape, true) for shape in fragment_shapes(kernel, 16_384)]
    fitted = fit_latency(shapes, launch_alone(), true)
    profile = AttentionProfile(latency=fitted, measurements=tuple(shapes))
    assert (fitted.forward_launch, fitted.backward_launch) == pytest.approx(LAUNCH)
    inside = [profile.error(shape) for shape in shapes if not shape.held_out]
    assert inside == pytest.approx([0.0] * len(inside), abs=1e-9)
    assert len(profile.held_out_errors) == 12
    assert max(profile.held_out_errors) < 0.02


def test_held_out_shapes_are_not_in_the_table() -> None:
    true = law()
    shapes = [timed(shape, true) for shape in fragment_shapes(varlen(), 16_384)]
    wrong = [
        replace(s, forward=timing(9.0), both=timing(30.0)) if s.held_out else s for s in shapes
    ]
    assert fit_latency(shapes, launch_alone(), true) == fit_latency(wrong, launch_alone(), true)


def test_what_was_not_measured_has_the_throughput_of_as_many_queries() -> None:
    true = law()
    shapes = [timed(shape, true) for shape in fragment_shapes(varlen(), 16_384)]
    gone = [
        replace(s, outcome="skipped", forward=None, both=None)
        if (s.queries, s.keys) == (16_384, 16_384)
        else s
        for s in shapes
    ]
    fitted = fit_latency(gone, launch_alone(), true)
    assert fitted.queries[-1] == 4096
    for row, queries in enumerate(fitted.queries):
        # No fragment has more queries than keys, so these have what the fewest keys have.
        measured = [k for k in fitted.keys if k >= queries]
        first = fitted.forward_tflops[row][fitted.keys.index(measured[0])]
        assert all(v == first for v in fitted.forward_tflops[row][: -len(measured)])
    missing = [
        replace(s, outcome="skipped", forward=None, both=None)
        if (s.queries, s.keys) == (512, 8192)
        else s
        for s in shapes
    ]
    fitted = fit_latency(missing, launch_alone(), true)
    row = fitted.forward_tflops[fitted.queries.index(512)]
    assert row[fitted.keys.index(8192)] == row[fitted.keys.index(16_384)]


def test_shapes_go_upward_and_are_fragments() -> None:
    for kernel in (varlen(), choose_kernel("sdpa", CPU, "fp32")):
        for quick in (False, True):
            shapes = fragment_shapes(kernel, 4096, quick=quick)
            pairs = [s.fragments * s.queries * s.keys for s in shapes]
            assert pairs == sorted(pairs)
            assert len({(s.queries, s.keys) for s in shapes}) == len(shapes)
            assert all(1 <= s.queries <= s.keys <= 4096 for s in shapes)
            assert sum(s.held_out for s in shapes) >= 3
    assert len(fragment_shapes(varlen(), 4096, quick=True)) < len(fragment_shapes(varlen(), 4096))
    with pytest.raises(ConfigurationError, match="max_length=512"):
        fragment_shapes(varlen(), 512)


def clock_of(spent: list[float]) -> Callable[[], float]:
    return lambda: sum(spent)


def test_shapes_that_do_not_fit_in_the_time_left_are_skipped() -> None:
    spent: list[float] = []
    done: list[tuple[int, int]] = []
    shapes = [FragmentMeasurement(queries=q, keys=q) for q in (10, 20, 40, 80, 160)]

    def time_shape(s: FragmentMeasurement, share: float, limit: float) -> tuple[Timing, Timing]:
        assert share > 0
        assert limit <= 10.0
        seconds = 1e-4 * s.queries * s.keys
        spent.append(6 * seconds)
        return timing(seconds / 3), timing(seconds)

    found = measure_shapes(
        shapes,
        time_shape,
        seconds=10.0,
        progress=lambda *at: done.append(at),
        clock=clock_of(spent),
    )
    assert [m.outcome for m in found] == ["ok", "ok", "ok", "ok", "skipped"]
    assert sum(spent) < 10.0
    assert done == [(n, 5) for n in range(1, 6)]


def test_running_out_of_memory_skips_one_shape_and_other_errors_are_raised() -> None:
    shapes = [FragmentMeasurement(queries=q, keys=q) for q in (10, 20, 40)]

    def time_shape(s: FragmentMeasurement, share: float, limit: float) -> tuple[Timing, Timing]:
        if s.queries == 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return timing(1e-6), timing(3e-6)

    found = measure_shapes(shapes, time_shape, seconds=10.0)
    assert [m.outcome for m in found] == ["ok", "out of memory", "ok"]

    def broken(s: FragmentMeasurement, share: float, limit: float) -> tuple[Timing, Timing]:
        raise KeyError("something else")

    with pytest.raises(KeyError):
        measure_shapes(shapes, broken, seconds=10.0)


def test_too_few_shapes_make_no_model() -> None:
    shapes = [timed(FragmentMeasurement(queries=128, keys=128), law())]
    with pytest.raises(ConfigurationError, match=r"only 1 numbers of queries.*give more --seconds"):
        fit_latency(shapes, launch_alone(), law())


def test_noise_never_makes_a_pass_free() -> None:
    # Both passes measured as fast as the first alone.
    noisy = FragmentMeasurement(queries=8, keys=8, forward=timing(2e-3), both=timing(1e-3))
    assert noisy.seconds is not None
    ahead, back = noisy.seconds
    assert back > 0
    assert ahead + back == pytest.approx(1e-3)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 7), (5, 5), (1, 6)])
def test_what_is_timed_is_the_last_queries_of_every_document(queries: int, keys: int) -> None:
    plan = equal_fragments(queries, keys, 3)
    own = slice(int(plan.offsets[-2]), int(plan.offsets[-1]))
    assert plan.document[own].tolist() == [0, 1, 2]
    assert plan.start[own].tolist() == [keys - queries] * 3
    assert plan.end[own].tolist() == [keys] * 3
    assert plan.tokens.tolist() == [3 * (keys - queries), 3 * queries]
    assert sorted(plan.permutation.tolist()) == list(range(3 * keys))
    # The back end wants no other keys than those of the fragments.
    kernel = kernel_of("sdpa", plan, plan.ranks - 1, torch.device("cpu"))
    assert len(kernel.rows) == 3 * keys


def test_both_passes_are_run() -> None:
    kernel = choose_kernel("auto", CPU, "fp32")
    forward, both = kernel.passes(4, 9, 1, Heads(heads=4, kv_heads=2, head_size=8), CPU, "fp32")
    out = forward()
    assert isinstance(out, torch.Tensor)
    assert out.shape == (4, 4, 8)
    gradients = both()
    assert isinstance(gradients, tuple)
    assert [g.shape for g in gradients] == [(4, 4, 8), (9, 2, 8), (9, 2, 8)]
    assert all(bool(g.any()) for g in gradients)


def test_the_kernel_is_what_runs_on_the_device() -> None:
    assert choose_kernel("auto", CPU, "fp32").name == "sdpa"
    assert choose_kernel("sdpa", CUDA, "bf16").launches == "fragment"
    half = choose_kernel("auto", CUDA, "bf16")
    assert half.name == pick_backend("auto", torch.device("cuda"), torch.bfloat16, trains=True)
    assert half.launches == ("fragment" if half.name == "sdpa" else "rank")
    for wanted in ("flash", "flex"):
        with pytest.raises(ConfigurationError, match=f"backend='{wanted}'"):
            choose_kernel(wanted, CPU, "bf16")
    with pytest.raises(ConfigurationError, match="kernel='abacus'"):
        choose_kernel("abacus", CPU, "fp32")


def test_heads_must_be_shared_evenly() -> None:
    with pytest.raises(ConfigurationError, match="kv_heads=3 must divide heads=4"):
        Heads(heads=4, head_size=8, kv_heads=3)


def test_the_text_says_how_far_to_trust_the_model(tmp_path: Path) -> None:
    true = law()
    shapes = [timed(shape, true) for shape in fragment_shapes(varlen(), 16_384)]
    shapes[-1] = replace(shapes[-1], outcome="skipped", forward=None, both=None)
    profile = AttentionProfile(
        latency=fit_latency(shapes, launch_alone(), true), measurements=tuple(shapes)
    )
    text = attention_text(profile)
    assert "attention on Abacus X, kernel beads, bf16" in text
    assert f"of {len(profile.held_out_errors)} shapes that are not in the table" in text
    assert "note: skipped: 1 of" in text
    profile.save(tmp_path / "latency.json")
    assert load_latency(tmp_path / "latency.json", device="Abacus X") == profile.latency

    noisy = tuple(
        replace(s, both=timing(s.both.seconds * (2 if s.held_out else 1), 0.4)) if s.both else s
        for s in shapes
    )
    text = attention_text(replace(profile, measurements=noisy))
    assert "is something else running?" in text
    assert "measure again, with more --seconds" in text
