"""Measures attention over (queries, keys), and fits an `AttentionLatency`.

A grid of shapes fills the table; shapes between its points are measured only to test the model's
predictions. Shapes are timed from the smallest on, and those that do not fit in the remaining time
or memory are skipped: the table then repeats the entry with as many queries and the nearest number
of keys. So it does for more queries than keys, which cannot occur in a fragment.

The kernels are those of `evenstep.context_parallel`, run on the fragments of a rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from evenstep.context_parallel.kernels import BACKENDS, check_backend, kernel_of, pick_backend
from evenstep.context_parallel.latency import BACKWARD, FORWARD, AttentionLatency, Table
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding
from evenstep.plan.sharding.sharding import TILE, causal_tiles
from evenstep.plan.value_checks import check_at_least, check_one_of
from evenstep.tools.profile.attention_profile import (
    LEAST_COMPUTING,
    AttentionProfile,
    FragmentMeasurement,
)
from evenstep.tools.profile.model_on_device import DTYPES, Device, choose_device
from evenstep.tools.profile.timer import Timing, free_memory, ran_out_of_memory, time_in_turn

Pass = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The attention heads that a GPU computes."""

    heads: int
    head_size: int
    kv_heads: int | None = None
    """Heads of keys and values: fewer than `heads` for grouped-query attention; None is as many."""

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, head_size=self.head_size, kv_heads=self.kv_heads)
        if self.heads % self.key_heads:
            raise ConfigurationError(f"kv_heads={self.kv_heads} must divide heads={self.heads}")

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """One kernel on one device."""

    name: str
    launches: str
    """"rank" or "fragment", as in `AttentionLatency`."""
    tile: int
    most_queries: int = 16_384
    """Most queries in a call of several fragments: enough to fill a GPU."""
    most_keys: int = 1 << 20
    """Most keys in a call of several fragments, so that they fit in memory."""

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """(package, version) of PyTorch, and of the package that has the kernel."""
        packages = ["torch", *{"flash": ["flash-attn"], "flex": ["triton"]}.get(self.name, [])]
        return tuple((name, found) for name in packages if (found := _version(name)))

    def fragments(self, queries: int, keys: int) -> int:
        """Number of fragments timed in one call."""
        if self.launches == "fragment":
            return 1
        return max(1, min(self.most_queries // queries, self.most_keys // keys))

    def passes(
        self, queries: int, keys: int, fragments: int, heads: Heads, device: Device, dtype: str
    ) -> tuple[Pass, Pass]:
        """Functions that run the forward pass, and both passes, of `fragments` on random values."""
        plan = equal_fragments(queries, keys, fragments)
        kernel = kernel_of(self.name, plan, plan.ranks - 1, torch.device(device.kind))
        generator = torch.Generator(device.kind).manual_seed(0)

        def random(tokens: int, count: int) -> torch.Tensor:
            like: dict[str, Any] = {"device": device.kind, "dtype": DTYPES[dtype]}
            return torch.randn(tokens, count, heads.head_size, generator=generator, **like)

        query, gradient = (random(fragments * queries, heads.heads) for _ in range(2))
        key, value = (random(len(kernel.rows), heads.key_heads) for _ in range(2))
        inputs = (query, key, value)
        for tensor in inputs:
            tensor.requires_grad_()
        scale = heads.head_size**-0.5

        def forward() -> object:
            return kernel(query, key, value, scale)

        def both() -> object:
            return torch.autograd.grad(kernel(query, key, value, scale), inputs, gradient)

        return forward, both


def equal_fragments(queries: int, keys: int, fragments: int) -> Sharding:
    """A sharding of documents of `keys` tokens over two ranks: the last `queries` of each are one
    fragment on the last rank, and the rest is on the other."""
    documents = np.arange(fragments)
    before = keys - queries
    first = documents if before else documents[:0]
    return Sharding(
        lengths=np.full(fragments, keys),
        document=np.concatenate([first, documents]),
        start=np.repeat([0, before], [len(first), fragments]),
        end=np.repeat([before, keys], [len(first), fragments]),
        offsets=np.array([0, len(first), len(first) + fragments]),
        method="per-sequence",
    )


def choose_kernel(wanted: str, device: Device, dtype: str) -> AttentionKernel:
    """The kernel called `wanted`; "auto" is the one that `evenstep.context_parallel` would choose.

    Raises:
        ConfigurationError: the name is unknown, or the kernel does not run here or with this dtype.
    """
    check_one_of(BACKENDS, kernel=wanted)
    where = torch.device(device.kind)
    check_backend(wanted, where)
    name = pick_backend(wanted, where, DTYPES[dtype], trains=True)
    if name == "sdpa":
        # PyTorch's kernel for CPUs has other tile sizes, and does not pad a tile of few rows.
        tile = 1 if device.kind == "cpu" else TILE
        return AttentionKernel(name=name, launches="fragment", tile=tile)
    return AttentionKernel(name=name, launches="rank", tile=TILE)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
