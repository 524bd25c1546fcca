"""Back ends: each computes attention as written out, of the keys that it asks for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threaded_ranks import CPU, varlen, whole

from evenstep.context_parallel import kernels
from evenstep.context_parallel.kernels import (
    FlashKernel,
    Kernel,
    SdpaKernel,
    pick_backend,
)
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document
from shardings import shardings

CUDA = torch.device("cuda", 0)


def everyones(sharding: Sharding, x: torch.Tensor) -> torch.Tensor:
    """The buffer of all ranks' rows; padding of slots is NaN."""
    slot = int(sharding.tokens.max())
    buffer = x.new_full((sharding.ranks, slot, *x.shape[1:]), torch.nan)
    for rank, tokens in enumerate(sharding.tokens):
        buffer[rank, :tokens] = x[torch.from_numpy(sharding.indices(rank))]
    return buffer.flatten(0, 1)


def check(
    build: Callable[[Sharding, int], Kernel], sharding: Sharding, *, gradients: bool = True
) -> None:
    """A kernel against the whole sequence, rank for rank."""
    torch.manual_seed(0)
    tokens = int(sharding.lengths.sum())
    q, k, v, grad = (torch.randn(tokens, heads, 4, dtype=torch.float64) for heads in (4, 2, 2, 4))
    q, k, v = (x.requires_grad_(gradients) for x in (q, k, v))
    out = whole(q, k, v, sharding, 0.3)
    for rank in range(sharding.ranks):
        own = torch.from_numpy(sharding.indices(rank))
        if not len(own):
            continue
        kernel = build(sharding, rank)
        buffers = [everyones(sharding, x) for x in (k, v)]
        found = kernel(q[own], *(x[kernel.rows] for x in buffers), 0.3)
        torch.testing.assert_close(found, out[own])
        if gradients:
            expected = torch.autograd.grad(out[own], (q, k, v), grad[own], retain_graph=True)
            backward = torch.autograd.grad(found, (q, k, v), grad[own], retain_graph=True)
            torch.testing.assert_close(backward, expected)


@given(shardings(), st.sampled_from([1, 5, 64, 1 << 22]))
def test_sdpa_is_right_whatever_the_size_of_its_masks(sharding: Sharding, mask: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MASK", mask)
        check(lambda sharding, rank: SdpaKernel(sharding, rank, CPU), sharding)


@given(shardings())
def test_flash_gives_a_varlen_kernel_what_it_takes(sharding: Sharding) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "flash_function", lambda: varlen)
        check(lambda sharding, rank: FlashKernel(sharding, rank, CPU), sharding)


def flash_attn_varlen_func(*given: Any, softmax_scale: float, causal: bool) -> torch.Tensor:
    """Its first arguments are those of `varlen`."""
    assert causal
    return varlen(*given, softmax_scale)


def of_2_12(*given: Any, scale: Any, window_size: Any, enable_gqa: bool) -> torch.Tensor:
    assert window_size == (-1, 0)
    assert enable_gqa == (given[0].shape[1] != given[1].shape[1])
    return varlen(*given, scale)


def of_2_10(*given: Any, is_causal: bool) -> torch.Tensor:
    raise AssertionError("it takes no scale")


def test_flash_attention_and_torchs_own_are_called_by_their_signatures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    module, old = (SimpleNamespace(varlen_attn=function) for function in (of_2_12, of_2_10))
    for there, torchs in ((package, None), (None, module), (None, old), (None, None)):
        monkeypatch.setitem(sys.modules, "flash_attn", there)
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", torchs)
        kernels.flash_function.cache_clear()
        assert (kernels.flash_function() is None) == (there is None and torchs is not module)
        if kernels.flash_function() is not None:
            check(partial(FlashKernel, device=CPU), shard_per_document([40, 3, 9], 2))
    kernels.flash_function.cache_clear()


def test_the_installed_varlen_attention_has_the_arguments_that_it_is_given() -> None:
    module = pytest.importorskip("torch.nn.attention.varlen")
    taken = set(inspect.signature(module.varlen_attn).parameters)
    assert taken >= {"scale", "window_size", "enable_gqa"}


@pytest.mark.parametrize(
    ("dtype", "flash_there", "picked"),
    [
        (torch.bfloat16, True, "flash"),
        (torch.float16, False, "sdpa"),
        (torch.float32, True, "sdpa"),
    ],
)
def test_auto_picks_the_fastest_that_device_and_dtype_allow(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, flash_there: bool, picked: str
) -> None:
    choice = "evenstep.context_parallel.kernels"
    monkeypatch.setattr(f"{choice}.flash_function", lambda: varlen if flash_there else None)
    assert pick_backend("auto", CUDA, dtype) == picked
    assert pick_backend("auto", CPU, dtype) == "sdpa"
    assert pick_backend("flash", CUDA, torch.bfloat16) == "flash"
    if dtype == torch.float32:
        with pytest.raises(ConfigurationError, match=r"not torch\.float32; run the model under"):
            pick_backend("flash", CUDA, dtype)
