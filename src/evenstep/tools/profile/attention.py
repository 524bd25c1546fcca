"""Measures attention over (queries, keys), and fits an `AttentionLatency`.

A grid of shapes fills the table; shapes between its points are measured only to test the model's
predictions. Shapes are timed from the smallest on, and those that do not fit in the remaining time
or memory are skipped: the table then repeats the entry with as many queries and the nearest number
of keys. So it does for more queries than keys, which cannot occur in a fragment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from evenstep.context_parallel.latency import BACKWARD, FORWARD, AttentionLatency, Table
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.sharding.kernel_latency import causal_tiles
from evenstep.tools.profile.attention_kernels import AttentionKernel, Heads
from evenstep.tools.profile.attention_profile import (
    LEAST_COMPUTING,
    AttentionProfile,
    FragmentMeasurement,
)
from evenstep.tools.profile.model_on_device import Device, choose_device
from evenstep.tools.profile.timer import Timing, free_memory, ran_out_of_memory, time_in_turn

Progress = Callable[[int, int], None]
"""Called with (done, total) shapes."""
TimeShape = Callable[[FragmentMeasurement, float, float], tuple[Timing, Timing]]
"""From (shape, share, limit), the latter in seconds, to timings of forward and of both passes."""

_QUERIES = (16, 32, 64, 128, 256, 512, 1024, 4096, 16_384)
_KEYS = (64, 128, 256, 512, 2048, 8192, 32_768, 131_072)
_CALLS = 6
"""Times that a shape runs both passes, about and at least."""
_LEAST_SHARE = 0.01
"""Share of the whole time for one shape."""


def this_device() -> str:
    """The name of this machine's device in files: `load_latency(device=...)`."""
    return str(choose_device())


def fragment_shapes(
    kernel: AttentionKernel, max_length: int, *, quick: bool = False
) -> list[FragmentMeasurement]:
    """The shapes to measure, in ascending order of a call's pairs: a grid, and held-out shapes
    between its points.

    Args:
        max_length: the most keys, at least 1,024.
        quick: half as many points on each axis, and fewer held-out shapes.

    Raises:
        ConfigurationError: `max_length` is too small.
    """
    check_at_least(1024, max_length=max_length)
    queries, keys = (_points(all_, kernel.tile, max_length, quick) for all_ in (_QUERIES, _KEYS))
    grid = {(q, k) for q in queries for k in keys if q <= k}
    between = [
        (round((q * more_q) ** 0.5), round((k * more_k) ** 0.5))
        for q, more_q in pairwise(queries)
        for k, more_k in pairwise(keys)
    ]
    between = [shape for shape in between if shape[0] <= shape[1] and shape not in grid]
    # From the smallest to the largest, evenly.
    between.sort(key=lambda shape: shape[0] * shape[1])
    count = min(6 if quick else 12, len(between))
    held_out = {between[round(i)] for i in np.linspace(0, len(between) - 1, count)}
    shapes = [
        FragmentMeasurement(
            queries=q, keys=k, fragments=kernel.fragments(q, k), held_out=(q, k) in held_out
        )
        for q, k in grid | held_out
    ]
    return sorted(shapes, key=lambda s: (s.fragments * s.queries * s.keys, s.queries, s.keys))


def measure_attention(
    kernel: AttentionKernel,
    heads: Heads,
    *,
    device: Device,
    dtype: str,
    max_length: int,
    seconds: float = 60.0,
    quick: bool = False,
    progress: Progress | None = None,
) -> AttentionProfile:
    """Times a kernel and fits the model.

    Args:
        device, dtype: as `choose_device` and `choose_dtype` return them.
        max_length: the most keys of a fragment.
        seconds: time for all shapes together, about.
        quick: fewer shapes.
        progress: called with (done, total) shapes.

    Raises:
        ConfigurationError: an argument is out of range, or the time was too short for a model.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"seconds={seconds} must be positive and finite")
    shapes = fragment_shapes(kernel, max_length, quick=quick)

    def time_shape(shape: FragmentMeasurement, share: float, limit: float) -> tuple[Timing, Timing]:
        passes = kernel.passes(shape.queries, shape.keys, shape.fragments, heads, device, dtype)
        for run in passes:
            run()  # loads libraries, compiles and chooses kernels, which is not timed
        forward, both = time_in_turn(
            passes, synchronize=device.synchronize, share=share, limit=limit
        )
        return forward, both

    begin = time.perf_counter()
    smallest = FragmentMeasurement(queries=1, keys=1)
    forward, both = time_shape(smallest, 0.02 * seconds, seconds)
    launch = replace(smallest, forward=forward, both=both)
    left = seconds - (time.perf_counter() - begin)
    measured = measure_shapes(shapes, time_shape, seconds=left, progress=progress)
    like = AttentionLatency(
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_size=heads.head_size,
        tile=kernel.tile,
        launches=kernel.launches,
        device=str(device),
        kernel=kernel.name,
        dtype=dtype,
        versions=kernel.versions,
        queries=(1, 2),
        keys=(1, 2),
        forward_tflops=((1.0, 1.0), (1.0, 1.0)),
        backward_tflops=((1.0, 1.0), (1.0, 1.0)),
    )
    return AttentionProfile(
        latency=fit_latency(measured, launch, like), measurements=tuple(measured)
    )


def measure_shapes(
    shapes: Sequence[FragmentMeasurement],
    time_shape: TimeShape,
    *,
    seconds: float,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[FragmentMeasurement]:
    """Times `shapes`, given in ascending order of their pairs, as far as time and memory allow.

    Returns:
        A measurement for each. Exceptions other than out of memory are raised.
    """
    begin = clock()
    found: list[FragmentMeasurement] = []
    per_pair = 0.0
    counts = [shape.fragments * shape.queries * shape.keys for shape in shapes]
    for index, (shape, pairs) in enumerate(zip(shapes, counts)):
        left = seconds - (clock() - begin)
        if left <= 0 or _CALLS * per_pair * pairs > left:
            found.append(replace(shape, outcome="skipped"))
        else:
            try:
                share = max(left * pairs / sum(counts[index:]), _LEAST_SHARE * seconds)
                forward, both = time_shape(shape, share, left)
                found.append(replace(shape, forward=forward, both=both))
                per_pair = both.seconds / pairs  # seconds per pair; larger shapes take less
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
                found.append(replace(shape, outcome="out of memory"))
        if found[-1].outcome == "out of memory":
            free_memory()
        if progress is not None:
            progress(index + 1, len(shapes))
    return found


def fit_latency(
    measurements: Sequence[FragmentMeasurement],
    launch: FragmentMeasurement,
    like: AttentionLatency,
) -> AttentionLatency:
    """Fits the latency model to measurements.

    Args:
        measurements: held-out ones are not used.
        launch: the measurement of the smallest possible fragment.
        like: a model with the right tile, heads and names; its table is replaced.

    Raises:
        ConfigurationError: fewer than two numbers of queries or of keys were measured.
    """
    timed = [(m, m.seconds) for m in measurements if not m.held_out]
    cells = {(m.queries, m.keys): (m, seconds) for m, seconds in timed if seconds is not None}
    queries, keys = (tuple(sorted({cell[axis] for cell in cells})) for axis in (0, 1))
    if len(queries) < 2 or len(keys) < 2 or launch.seconds is None:
        raise ConfigurationError(
            f"only {len(queries)} numbers of queries and {len(keys)} of keys were measured, and a "
            "table needs two of each; give more --seconds"
        )

    def table(which: int, per_pair: int) -> Table:
        known: dict[int, dict[int, float]] = {row: {} for row in queries}
        for m, seconds in cells.values():
            start, end = np.array([m.keys - m.queries]), np.array([m.keys])
            tiles = m.fragments * int(causal_tiles(start, end, like.tile)[0])
            operations = per_pair * like.heads * like.head_size * tiles * like.tile**2
            spent = max(seconds[which] - launches[which], LEAST_COMPUTING * seconds[which])
            known[m.queries][m.keys] = operations / spent / 1e12

        def nearest(row: Mapping[int, float], column: int) -> float:
            return row[min(row, key=lambda measured: abs(np.log(measured / column)))]

        return tuple(tuple(nearest(known[row], column) for column in keys) for row in queries)

    launches = launch.seconds
    return replace(
        like,
        queries=queries,
        keys=keys,
        forward_tflops=table(0, FORWARD),
        backward_tflops=table(1, BACKWARD),
        forward_launch=launches[0],
        backward_launch=launches[1],
    )


def _points(points: Sequence[int], tile: int, longest: int, quick: bool) -> list[int]:
    inside = [point for point in points if tile <= point < longest]
    if quick:
        inside = inside[::-1][1::2][::-1]
    return [*inside, longest]
