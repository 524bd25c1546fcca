"""What other frameworks take of a sharding, and what the scheduler for Megatron-LM relies on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn_documents import DRAWN, Drawn, samples_of
from evenstep.batch import PackCollator, to_megatron
from evenstep.context_parallel import document_lengths
from evenstep.context_parallel.frameworks import to_megatron_shard
from evenstep.errors import CollateError, ConfigurationError
from evenstep.plan.sharding import shard_per_document, shard_per_sequence
from shardings import any_chunks

pytestmark = pytest.mark.usefixtures("without_megatron")


def of_transformer_engine(cu_seqlens: list[int], ranks: int, rank: int) -> list[int]:
    """The documented cut of Transformer Engine, token by token."""
    positions = []
    for begin, end in pairwise(cu_seqlens):
        chunk, rest = divmod(end - begin, 2 * ranks)
        assert not rest
        for number in (rank, 2 * ranks - 1 - rank):
            positions += range(begin + number * chunk, begin + (number + 1) * chunk)
    return positions


def of_megatron(row: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """The cut of Megatron-LM for a whole row, by views."""
    chunks = row.unflatten(1, (2 * ranks, -1))
    return torch.cat([chunks[:, rank], chunks[:, 2 * ranks - 1 - rank]], 1)


def with_weights(docs: Drawn) -> list[dict[str, Any]]:
    return [
        {**sample, "weights": [float(token) for token in sample["input_ids"]], "name": "a document"}
        for sample in samples_of(docs)
    ]


TOKENWISE = ("tokens", "labels", "loss_mask", "position_ids", "weights")


@given(DRAWN, st.integers(1, 5))
def test_per_document_fields_are_what_megatron_gathers(docs, ranks):
    batch = PackCollator(pad_documents_to_multiple_of=2 * ranks)(with_weights(docs))
    whole, _ = to_megatron(batch, context_parallel_size=ranks)
    sharding = shard_per_document(document_lengths(batch), ranks)
    bounds = batch["cu_seqlens_padded"].tolist()
    for rank in range(ranks):
        fields, parameters = to_megatron_shard(batch, sharding, rank)
        positions = torch.tensor(of_transformer_engine(bounds, ranks, rank))
        assert fields.keys() == whole.keys()
        for name in whole:
            if name in TOKENWISE:
                assert torch.equal(fields[name], whole[name][:, positions])
            elif isinstance(whole[name], torch.Tensor):
                assert torch.equal(fields[name], whole[name])
            else:
                assert fields[name] == whole[name]
        bounds_of = batch["cu_seqlens_padded"]
        assert parameters["cu_seqlens_q"] is parameters["cu_seqlens_kv"] is bounds_of
        assert parameters["cu_seqlens_q_padded"] is batch["cu_seqlens_padded"]
        assert parameters["max_seqlen_q"] == max(document_lengths(batch))


@given(DRAWN, st.integers(1, 5))
def test_per_sequence_fields_are_megatrons_chunks_of_the_whole_row(docs, ranks):
    batch = PackCollator(pad_to_multiple_of=2 * ranks)(with_weights(docs))
    whole, _ = to_megatron(batch)
    sharding = shard_per_sequence(document_lengths(batch), ranks)
    for rank in range(ranks):
        fields, parameters = to_megatron_shard(batch, sharding, rank, own_attention=True)
        for name in TOKENWISE:
            assert torch.equal(fields[name], of_megatron(whole[name], ranks, rank))
        assert torch.equal(fields["cu_seqlens"], whole["cu_seqlens"])
        assert parameters["cu_seqlens_q"] is batch["cu_seqlens_padded"]


def test_a_sharding_that_megatrons_attention_does_not_know_is_refused():
    batch = PackCollator()([{"input_ids": [1] * n} for n in (4, 12)])
    with pytest.raises(ConfigurationError, match=r"per-sequence .* not the cut .* own_attention=T"):
        to_megatron_shard(batch, shard_per_sequence([4, 12], 2), 0)
    swapped = any_chunks([8], [0, 2, 6, 8], [1, 0, 1], 2)  # rank 0 has them in the other order
    with pytest.raises(ConfigurationError, match="the any sharding is not the cut"):
        to_megatron_shard(batch, swapped, 0)
    mixed = shard_per_document([8, 6], 2)
    with pytest.raises(ConfigurationError, match=r"document 1 has 6 .*pad_documents_to_multiple_"):
        to_megatron_shard(batch, mixed, 0)
    with pytest.raises(CollateError, match="make it from document_lengths"):
        to_megatron_shard(batch, shard_per_document([12, 4], 2), 0)
    fields, _ = to_megatron_shard(batch, shard_per_sequence([4, 12], 2), 0, own_attention=True)
    assert fields["tokens"].shape == (1, 8)
