"""Context-parallel ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from evenstep.context_parallel.collectives import Collectives
from evenstep.plan.sharding import Sharding

CPU = torch.device("cpu")


class ThreadCollectives(Collectives):
    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.ranks = rank, len(board)
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self._board, self._barrier = board, barrier

    def all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all("all_gather", rows))

    def reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        everyones = torch.stack(self._all("reduce_scatter", rows))
        return everyones.sum(0).chunk(self.ranks)[self.rank].clone()

    def _all(self, name: str, rows: torch.Tensor) -> list[torch.Tensor]:
        self.calls.append((name, tuple(rows.shape)))
        self._board[self.rank] = (name, rows.detach().clone())
        self._barrier.wait()
        posted = list(self._board)
        self._barrier.wait()
        # As real ranks would hang or fail.
        assert {other for other, _ in posted} == {name}
        assert {other.shape for _, other in posted} == {rows.shape}
        return [other for _, other in posted]


def on_ranks(ranks: int, function: Callable[[ThreadCollectives], Any]) -> list[Any]:
    """What `function` returns on each, or the exception that it raised."""
    board, barrier = [None] * ranks, threading.Barrier(ranks, timeout=20)

    def one(rank: int) -> Any:
        try:
            return function(ThreadCollectives(rank, board, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def values(outcomes: list[Any]) -> list[Any]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def whole(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sharding: Sharding, scale: float
) -> torch.Tensor:
    """Attention of the whole sequence in one process, written out: the truth."""
    document = torch.from_numpy(np.arange(len(sharding.lengths)).repeat(sharding.lengths))
    seen = (document[:, None] == document[None, :]).tril()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
) -> torch.Tensor:
    """What FlashAttention documents: causal, aligned at the bottom right; heads in groups."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert int(cu_seqlens_q.diff().max()) == max_seqlen_q
    assert int(cu_seqlens_k.diff().max()) == max_seqlen_k
    outs = []
    for queries, keys in zip(
        torch.tensor_split(torch.arange(len(q)), cu_seqlens_q[1:-1].long()),
        torch.tensor_split(torch.arange(len(k)), cu_seqlens_k[1:-1].long()),
    ):
        seen = torch.ones(len(queries), len(keys)).tril(len(keys) - len(queries)).bool()
        parts = (x.transpose(0, 1)[None] for x in (q[queries], k[keys], v[keys]))
        out = scaled_dot_product_attention(*parts, attn_mask=seen, scale=scale, enable_gqa=True)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)
