"""Figures 7 and 10: what operations take by length, measured on this device.

With the parts of ``evenstep profile``, in processor time on a CPU, whatever else it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.papers.outcome import Outcome, Table
from evenstep.tools.profile import Device, ModelShape, Timing
from evenstep.tools.profile.attention_kernels import Heads, choose_kernel
from evenstep.tools.profile.device import DTYPES, choose_device, choose_dtype
from evenstep.tools.profile.layer_fit import fit_parts
from evenstep.tools.profile.layer_measure import lengths_up_to, measure_upward
from evenstep.tools.profile.layer_parts import Layer, LayerParts
from evenstep.tools.profile.timer import time_in_turn

SECONDS = 12.0
ON_CPU, ON_GPU = (
    ModelShape(layers=1, hidden_size=512, heads=4, ffn_size=1376),
    ModelShape(layers=1, hidden_size=4096, heads=32, ffn_size=11_008),
)
"""An eighth of a 7B layer's width, and a whole one."""
QUERIES = (16, 32, 64, 128, 256, 512, 1024)
KEYS = 2048
HEADS = Heads(heads=8, head_size=128)


def clock_of(device: Device) -> Callable[[], float]:
    return time.process_time if device.kind == "cpu" else time.perf_counter


def figure_7(seed: int) -> Outcome:
    """One layer, forward and backward; nothing in it is random."""
    device = choose_device()
    shape, longest = (ON_CPU, 4096) if device.kind == "cpu" else (ON_GPU, 131_072)
    layer = Layer(shape, device=device.kind, dtype=DTYPES[choose_dtype(None, device)])
    clock = clock_of(device)
    LayerParts(layer, 32)  # loads libraries

    def time_length(length: int, share: float, limit: float) -> tuple[Timing, Timing]:
        parts = LayerParts(layer, length)
        attention, rest = time_in_turn(
            (parts.attention, parts.rest),
            synchronize=device.synchronize,
            share=share,
            limit=limit,
            clock=clock,
        )
        return attention, rest

    lengths = lengths_up_to(longest)
    found = [
        (m.length, m.attention.seconds, m.rest.seconds)
        for m in measure_upward(lengths, time_length, seconds=SECONDS, clock=clock)
        if m.attention is not None and m.rest is not None
    ]
    length, attention, rest = np.array(found).T
    fits = fit_parts(length, attention, rest)
    (a0, a1, a2), (r0, r1) = fits.attention, fits.rest
    fitted = zip(a0 + a1 * length + a2 * length**2, r0 + r1 * length)
    rows = [
        [f"{int(n):,}"]
        + [f"{1e3 * each:.2f}" for each in (first, its_fit, other, other_fit)]
        + [f"{first / (first + other):.0%}"]
        for (n, first, other), (its_fit, other_fit) in zip(found, fitted)
    ]
    header = ["tokens", "attention, ms", "fitted", "all else, ms", "fitted", "attention's share"]
    times = f"{attention[-1] / attention[-2]:.1f} and {rest[-1] / rest[-2]:.1f}"
    return Outcome(
        [Table(header, rows, f"{device}, width {shape.hidden_size:,}")],
        "attention quadratic, all else linear",
        f"{times} times from {rows[-2][0]} to {rows[-1][0]} tokens",
    )


def figure_10(seed: int) -> Outcome:
    """The attention kernel by queries, forward; nothing in it is random."""
    device = choose_device()
    dtype = choose_dtype(None, device)
    kernel = choose_kernel("auto", device, dtype)
    rows = []
    seconds_of = {}
    for queries in QUERIES:
        fragments = kernel.fragments(queries, KEYS)
        forward, _ = kernel.passes(queries, KEYS, fragments, HEADS, device, dtype)
        forward()
        (timing,) = time_in_turn(
            (forward,),
            synchronize=device.synchronize,
            share=SECONDS / len(QUERIES) / 2,
            limit=SECONDS,
            clock=clock_of(device),
        )
        seconds_of[queries] = seconds = timing.seconds / fragments
        pairs = queries * (KEYS - (queries - 1) / 2)
        tflops = 4 * pairs * HEADS.heads * HEADS.head_size / seconds / 1e12
        rows.append([f"{queries:,}", f"{1e6 * seconds:,.0f}", f"{tflops:.4f}"])
    slower = seconds_of[128] / seconds_of[16]
    title = f"{device}, {kernel.name}, {KEYS:,} keys, forward"
    return Outcome(
        [Table(["queries", "microseconds of a fragment", "TFLOPs"], rows, title)],
        "16 queries take as long as 128",
        f"128 take {slower:.1f} times as long as 16",
    )
