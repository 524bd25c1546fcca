"""FlexAttention: one compiled kernel, and a block mask built from the sharding.

Each query sees one range of keys: from the first of its document to itself. So the mask function
compares with two numbers per query. Which blocks hold some pairs, or nothing but pairs, is counted
from those ranges, with a number per block, never one per pair.

The kernel is always compiled: uncompiled, PyTorch would compute every pair of tokens. On CPU
PyTorch has no backward pass for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.arrays import Int64Array
from evenstep.context_parallel.kernels.layout import KeyLayout, buffer_rows, each_document_once
from evenstep.plan.sharding import Sharding

BLOCK = 128
"""Queries, and keys, of a block."""


class FlexKernel:
    """See `evenstep.context_parallel.kernels.Kernel`."""

    repeated = False

    def __init__(
        self,
        sharding: Sharding,
        rank: int,
        device: torch.device,
        *,
        function: Callable[..., Any] | None = None,
    ) -> None:
        from torch.nn.attention.flex_attention import BlockMask

        layout = each_document_once(sharding, rank)
        self.rows = torch.from_numpy(buffer_rows(sharding, layout.positions)).to(device)
        self._function = function or compiled_flex()
        if not len(layout.keys):
            return  # a rank without tokens never calls it
        low, high = _ranges(layout)
        some, full = _blocks(low, high, len(layout.positions))
        lowest, highest = (torch.from_numpy(x).to(device) for x in (low, high))

        def attends(
            _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
        ) -> torch.Tensor:
            return (key >= lowest[query]) & (key <= highest[query])

        self._mask = BlockMask.from_kv_blocks(
            *_ordered(some & ~full, device),
            *_ordered(full, device),
            BLOCK_SIZE=BLOCK,
            mask_mod=attends,
            seq_lengths=(len(low), len(layout.positions)),
        )

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out: torch.Tensor = self._function(
            *(x.transpose(0, 1)[None] for x in (q, k, v)),
            block_mask=self._mask,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[0].transpose(0, 1)


@cache
def compiled_flex() -> Callable[..., Any]:
    """One kernel for all shardings; sizes are symbolic, or each micro-batch would compile again."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _ranges(layout: KeyLayout) -> tuple[Int64Array, Int64Array]:
    """[queries] the first and the last key that each sees.

    A fragment of 2 queries whose document has 5 keys from 10 on gives (10, 13) and (10, 14).
    """
    sizes = np.diff(layout.queries)
    last_key = layout.first + layout.keys - 1  # [fragments]
    last_query = layout.queries[1:] - 1  # [fragments] the query that sees the last key
    query = np.arange(layout.queries[-1])
    return layout.first.repeat(sizes), query + (last_key - last_query).repeat(sizes)


def _blocks(
    low: Int64Array, high: Int64Array, keys: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two arrays [blocks of queries, blocks of keys]: whether any query of the one sees any key of
    the other, and whether every query sees every key."""
    rows, columns = -(-len(low) // BLOCK), -(-keys // BLOCK)
    block = np.arange(len(low)) // BLOCK
    any_ = _covered(block, low // BLOCK, high // BLOCK + 1, rows, columns) > 0
    whole_first, whole_end = -(-low // BLOCK), (high + 1) // BLOCK
    all_ = _covered(block, whole_first, np.maximum(whole_first, whole_end), rows, columns)
    # The last block of queries may have fewer of them, and does not count as a whole one.
    return any_, all_ == BLOCK


def _covered(
    block: Int64Array, first: Int64Array, end: Int64Array, rows: int, columns: int
) -> Int64Array:
    """[rows, columns] how many queries of each block have the column in [first, end)."""
    width = columns + 2  # an empty range may begin after the last column
    opened = np.bincount(block * width + first, minlength=rows * width)
    closed = np.bincount(block * width + end, minlength=rows * width)
    covered: Int64Array = (opened - closed).reshape(rows, width).cumsum(axis=1)[:, :columns]
    return covered


def _ordered(
    blocks: npt.NDArray[np.bool_], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of blocks of keys for each block of queries, and their indices, those first."""
    count = torch.from_numpy(blocks.sum(-1, dtype=np.int32))
    order = torch.from_numpy((~blocks).argsort(axis=-1, kind="stable").astype(np.int32))
    return count[None, None].to(device), order[None, None].to(device)
