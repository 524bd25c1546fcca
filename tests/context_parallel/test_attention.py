"""`attention`: with any sharding it gives what one process gives, outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threaded_ranks import (
    CPU,
    ThreadCollectives,
    on_ranks,
    values,
    varlen,
    whole,
)
from torch.utils.checkpoint import checkpoint

from evenstep.context_parallel import PreparedSharding, attention
from evenstep.context_parallel.collectives import Collectives
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document, shard_per_sequence
from shardings import random_sharding, shardings

RAGGED = [7, 1, 30, 2, 13]


def tensors(
    sharding: Sharding, heads: int = 4, kv_heads: int = 2, size: int = 8, dtype: Any = torch.float64
) -> list[torch.Tensor]:
    """q, k, v of the whole sequence, and the gradient of the output."""
    made = torch.Generator().manual_seed(0)  # not the global one, as ranks are threads
    tokens = int(sharding.lengths.sum())
    shapes = [(tokens, n, size) for n in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, dtype=dtype, generator=made) for shape in shapes]


def on_rank(
    collectives: ThreadCollectives, sharding: Sharding, whole_sequence: list[torch.Tensor]
) -> tuple[PreparedSharding, list[torch.Tensor]]:
    """The rank's part of a sharding, and its own rows of these tensors."""
    own = torch.from_numpy(sharding.indices(collectives.rank))
    rows = [x[own].clone() for x in whole_sequence]
    return PreparedSharding(sharding, collectives, device=CPU), rows


def on_shard(
    collectives: ThreadCollectives,
    sharding: Sharding,
    whole_sequence: list[torch.Tensor],
    **options: Any,
) -> list[torch.Tensor]:
    """The rank's output and the gradients of its q, k and v."""
    prepared, (*inputs, grad) = on_rank(collectives, sharding, whole_sequence)
    inputs = [x.requires_grad_() for x in inputs]
    out = attention(*inputs, prepared, **options)
    return [out, *torch.autograd.grad(out, inputs, grad)]


def in_order(parts: list[list[torch.Tensor]], sharding: Sharding) -> list[torch.Tensor]:
    restore = torch.from_numpy(sharding.restore)
    return [torch.cat(shards)[restore] for shards in zip(*parts)]


def truth(sharding: Sharding, given_: list[torch.Tensor], scale: float) -> list[torch.Tensor]:
    *inputs, grad = given_
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = whole(*inputs, sharding, scale)
    return [out, *torch.autograd.grad(out, inputs, grad)]


@given(
    sharding=shardings(),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 1)]),
    scale=st.sampled_from([None, 0.1]),
)
def test_outputs_and_gradients_are_those_of_one_process(
    sharding: Sharding, heads: tuple[int, int], scale: float | None
) -> None:
    given_ = tensors(sharding, *heads)
    parts = values(
        on_ranks(sharding.ranks, lambda ranks: on_shard(ranks, sharding, given_, scale=scale))
    )
    expected = truth(sharding, given_, scale or 8**-0.5)
    torch.testing.assert_close(in_order(parts, sharding), expected, rtol=1e-9, atol=1e-9)


@given(shardings())
def test_a_kernel_that_wants_keys_twice_gives_the_same(sharding: Sharding) -> None:
    given_ = tensors(sharding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "evenstep.context_parallel.causal_attention.pick_backend", lambda *_, **__: "flash"
        )
        patch.setattr("evenstep.context_parallel.kernels.flash_function", lambda: varlen)
        parts = values(on_ranks(sharding.ranks, lambda ranks: on_shard(ranks, sharding, given_)))
    expected = truth(sharding, given_, 8**-0.5)
    torch.testing.assert_close(in_order(parts, sharding), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.02)]
)
def test_every_dtype_comes_out_as_it_came_in(dtype: torch.dtype, tolerance: float) -> None:
    sharding = shard_per_document(RAGGED, 3)
    given_ = tensors(sharding, dtype=dtype)
    parts = values(on_ranks(3, lambda ranks: on_shard(ranks, sharding, given_)))
    found = in_order(parts, sharding)
    expected = truth(sharding, [x.double() for x in given_], 8**-0.5)
    assert {x.dtype for x in found} == {dtype}
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def test_checkpointed_layers_gather_again_and_give_the_same_gradients() -> None:
    sharding = random_sharding(RAGGED, 3, seed=5)
    given_ = tensors(sharding)

    def train(ranks: ThreadCollectives, checkpointed: bool) -> list[Any]:
        prepared, (*inputs, grad) = on_rank(ranks, sharding, given_)
        inputs = [x.requires_grad_() for x in inputs]

        def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return attention(torch.tanh(attention(q, k, v, prepared)), k, v, prepared)

        out = checkpoint(layer, *inputs, use_reentrant=False) if checkpointed else layer(*inputs)
        return [[out, *torch.autograd.grad(out, inputs, grad)], [name for name, _ in ranks.calls]]

    plain = values(on_ranks(3, lambda ranks: train(ranks, False)))
    again = values(on_ranks(3, lambda ranks: train(ranks, True)))
    for (expected, _), (found, calls) in zip(plain, again):
        torch.testing.assert_close(found, expected)
        assert calls == ["all_gather"] * 4 + ["reduce_scatter"] * 2


def test_autocast_casts_what_rotary_embedding_left_in_float32() -> None:
    sharding = shard_per_document(RAGGED, 2)
    q, k, v, grad = tensors(sharding, dtype=torch.float32)

    def train(ranks: ThreadCollectives) -> list[torch.Tensor]:
        prepared, (*inputs, own_grad) = on_rank(ranks, sharding, [q, k, v.bfloat16(), grad])
        inputs = [x.requires_grad_() for x in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(*inputs, prepared)
        assert out.dtype == torch.bfloat16
        grads = torch.autograd.grad(out, inputs, own_grad.bfloat16())
        assert [x.dtype for x in grads] == [torch.float32, torch.float32, torch.bfloat16]
        return [out, *grads]

    found = in_order(values(on_ranks(2, train)), sharding)
    for one, other in zip(found, truth(sharding, [q, k, v, grad], 8**-0.5)):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)


PREPARED = PreparedSharding(shard_per_sequence([5, 3], 1), Collectives(), device=CPU)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((8, 4), (8, 2, 6), (8, 2, 6)), r"\[tokens, heads, head dim\]"),
        (((8, 4, 6), (8, 2, 6), (8, 1, 6)), "k and v alike"),
        (((2, 8, 4, 6), (2, 8, 2, 6), (2, 8, 2, 6)), "prepare and call attention for each row"),
        (((7, 4, 6), (7, 2, 6), (7, 2, 6)), "the 8 tokens of rank 0: those"),
        (((4, 8, 6), (2, 8, 6), (2, 8, 6)), "put heads after tokens"),
        (((8, 4, 6), (8, 2, 5), (8, 2, 5)), "equal head dims"),
        (((8, 3, 6), (8, 2, 6), (8, 2, 6)), "3 query heads must be a multiple of 2 kv heads"),
        (((8, 3, 6), (8, 0, 6), (8, 0, 6)), "3 query heads must be a multiple of 0 kv heads"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        attention(*(torch.zeros(shape) for shape in shapes), PREPARED)
