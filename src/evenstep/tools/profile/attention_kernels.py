"""Runs the attention kernels of `evenstep.context_parallel` on the fragments of a rank, for timing.

Each gets a sharding over two ranks. The last rank holds equal fragments: the last queries of
documents with a given number of keys; the other rank holds the rest. A kernel that computes all
fragments of a rank in one launch gets enough fragments to fill a GPU, others get one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from evenstep.context_parallel.kernels import BACKENDS, check_backend, kernel_of, pick_backend
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_one_of
from evenstep.plan.sharding import Sharding
from evenstep.plan.sharding.kernel_latency import TILE
from evenstep.tools.profile.model_on_device import DTYPES, Device

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
