"""What the formats read from a packed batch, checked once; and its attention masks.

Labels come aligned with the tokens, the first of each document -100. For frameworks that do not
shift labels inside, the row of labels is moved left by one: so the last token of a document gets
the -100 of the next document's first, and nothing is predicted across a boundary.

In the masks, tokens attend to themselves and those before in their document. One is a FlexAttention
block mask, whose size is the square of the number of *blocks*, the other a mask for scaled
dot-product attention, whose size is the square of the number of tokens. Padding attends too, within
its document, so no row of either mask is empty, and none gives NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from evenstep.batch.labels import IGNORE_INDEX
from evenstep.errors import CollateError, ConfigurationError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


_FIELDS = ("input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen", "document_ids")


@dataclass(frozen=True)
class PackedRow:
    """The fields of a batch of `PackCollator()`: a row of T tokens in n documents."""

    input_ids: torch.Tensor
    """int64 [1, T]."""
    labels: torch.Tensor
    """[1, T]."""
    position_ids: torch.Tensor
    """int64 [1, T], or [1, T, ...] where samples have their own."""
    cu_seqlens: torch.Tensor
    """int32 [n + 1], of real tokens."""
    cu_seqlens_padded: torch.Tensor | None
    """int32 [n + 1]; None where padding was not asked for."""
    max_seqlen: int
    document_ids: torch.Tensor
    """int32 [1, T]."""
    rest: dict[str, Any]
    """All other fields."""

    @property
    def bounds(self) -> torch.Tensor:
        """int32 [n + 1]: where documents begin in the row, and T."""
        return self.cu_seqlens if self.cu_seqlens_padded is None else self.cu_seqlens_padded

    def check_aligned(self, remedy: str) -> None:
        """
        Raises:
            CollateError: a document's first label is not -100, as in a batch of labels that the
                dataset has shifted.
        """
        first = self.labels[0, self.bounds[:-1].long()]
        if bool((first != IGNORE_INDEX).any()):
            raise CollateError(
                f"the first labels of documents are {first[:4].tolist()}, not all -100: they are "
                f"shifted already (PackCollator has mask_first_label=False); {remedy}"
            )

    def next_labels(self, labels_shifted: bool) -> torch.Tensor:
        """Labels [1, T] of the token after each.

        Raises:
            CollateError: `labels_shifted` is False, and labels are not aligned with the tokens.
        """
        if labels_shifted:
            return self.labels
        self.check_aligned("pass labels_shifted=True")
        last = torch.full_like(self.labels[:, :1], IGNORE_INDEX)
        return torch.cat([self.labels[:, 1:], last], dim=1)


def check_apart(positions: torch.Tensor, bounds: torch.Tensor) -> None:
    """
    Args:
        positions: [1, T]; any other shape passes.
        bounds: [n + 1] where documents begin in the row, and T.

    Raises:
        CollateError: models of transformers find other documents by the positions: one begins
            wherever a position is not the one before it plus 1.
    """
    if positions.ndim != 2:
        return
    begins = torch.ones_like(positions, dtype=torch.bool)
    begins[:, 1:] = positions.diff() != 1
    if not torch.equal(begins, begins_at(bounds, positions)):
        raise CollateError(
            "the samples' own position_ids do not count on by 1 until the next document begins, as "
            "models of transformers need; leave them out in the dataset, or name them otherwise"
        )


def begins_at(bounds: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """bool [1, T]: whether a document begins."""
    begins = torch.zeros_like(like, dtype=torch.bool)
    begins[0, bounds[:-1].long()] = True
    return begins


def read_packed(batch: Any) -> PackedRow:
    """
    Raises:
        CollateError: not a batch of ``PackCollator()``, or one with a label per document, or with
            weights of labels.
    """
    missing = [name for name in _FIELDS if not isinstance(batch, Mapping) or name not in batch]
    if missing:
        raise CollateError(f"the batch has no {', '.join(missing)}; collate it with PackCollator()")
    tokens, labels = batch["input_ids"], batch["labels"]
    if labels.shape != tokens.shape:
        raise CollateError(
            f"labels of shape {tuple(labels.shape)} do not go with tokens of shape "
            f"{tuple(tokens.shape)}; this form needs one label per token"
        )
    if "loss_mask" in batch:
        raise CollateError(
            "samples have a loss_mask, and tokens are weighted by their labels alone; set labels "
            "to -100 in the dataset, and leave loss_mask out"
        )
    known = (*_FIELDS, "cu_seqlens_padded", "use_cache")
    rest = {name: batch[name] for name in batch if name not in known}
    return PackedRow(
        **{name: batch[name] for name in _FIELDS},
        cu_seqlens_padded=batch.get("cu_seqlens_padded"),
        rest=rest,
    )


def attention_mask(batch: dict[str, Any]) -> torch.Tensor:
    """Mask for ``scaled_dot_product_attention(..., attn_mask=)`` and models of transformers.

    Args:
        batch: of `PackCollator`; the mask lies where its tensors lie.

    Returns:
        bool [1, 1, T, T], True where a token attends.

    Raises:
        CollateError: not a packed batch.
    """
    documents = _documents(batch)
    return (documents[:, None] == documents[None, :]).tril()[None, None]


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
