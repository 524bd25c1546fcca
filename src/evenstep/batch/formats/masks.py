"""Attention masks of a packed row: tokens attend to themselves and those before in their document.

As a FlexAttention block mask, whose size is the square of the number of *blocks*, or as a mask for
scaled dot-product attention, whose size is the square of the number of tokens. Padding attends
too, within its document, so no row of either mask is empty, and none gives NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from evenstep.errors import CollateError, ConfigurationError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def attention_mask(batch: dict[str, Any], *, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """Mask for ``scaled_dot_product_attention(..., attn_mask=)`` and models of transformers.

    Args:
        batch: of `PackCollator`; the mask lies where its tensors lie.
        dtype: bool for True where a token attends; a floating type for 0 there and -inf elsewhere.

    Returns:
        [1, 1, T, T].

    Raises:
        ConfigurationError: another dtype.
        CollateError: not a packed batch.
    """
    if dtype != torch.bool and not dtype.is_floating_point:
        raise ConfigurationError(f"dtype={dtype} must be torch.bool or a floating type")
    documents = _documents(batch)
    attends = (documents[:, None] == documents[None, :]).tril()[None, None]
    if dtype == torch.bool:
        return attends
    return torch.zeros_like(attends, dtype=dtype).masked_fill_(~attends, float("-inf"))


def block_mask(batch: dict[str, Any], *, block_size: int = 128) -> BlockMask:
    """Mask for ``flex_attention(..., block_mask=)``, of any batch size and number of heads.

    Blocks are computed from the boundaries of documents, so no mask of T x T is ever made: some MiB
    at 131,072 tokens, for which ``create_block_mask`` needs 16 GiB. Needs PyTorch 2.6.

    Args:
        batch: of `PackCollator`, on the device on which attention runs.
        block_size: tokens of a block in either direction, at least 2.

    Raises:
        ConfigurationError: a block size below 2.
        CollateError: not a packed batch.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if block_size < 2:
        raise ConfigurationError(f"block_size={block_size} must be at least 2 tokens")
    documents = _documents(batch)
    length = len(documents)
    ends = torch.arange(block_size - 1, length + block_size - 1, block_size).clamp(max=length - 1)
    first, last = documents[::block_size], documents[ends.to(documents.device)]
    # Documents ascend along the row, so a block of keys before a block of queries shares at most
    # one with it: its own last, the queries' first.
    here = torch.eye(len(first), dtype=torch.bool, device=documents.device)
    before = torch.ones_like(here).tril(-1)
    some = here | (before & (last[None, :] == first[:, None]))
    full = before & (first[None, :] == last[:, None])
    if length % block_size:
        full[-1] = False  # its queries end before the block does

    def attends(
        _batch: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return (query >= key) & (documents[query] == documents[key])

    return BlockMask.from_kv_blocks(
        *_ordered(some & ~full),
        *_ordered(full),
        BLOCK_SIZE=block_size,
        mask_mod=attends,
        seq_lengths=(length, length),
    )


def _ordered(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of keys each block of queries attends to, and all blocks, those first."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


def _documents(batch: Any) -> torch.Tensor:
    """int [T], ascending: the document of each token."""
    documents = batch.get("document_ids") if isinstance(batch, Mapping) else None
    if isinstance(documents, torch.Tensor) and len(documents) == 1:
        return documents[0]
    raise CollateError("the batch has no document_ids [1, tokens]; collate it with PackCollator()")
