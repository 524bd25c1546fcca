"""Context-parallel ranks together train as one would on the whole rows: all of them in one process,
with the keys and values of all ranks laid out as a variable-length kernel takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from evenstep.batch import PackCollator, shard_loss_scale
from evenstep.context_parallel import document_lengths, shard_batch
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import Sharding, shard_per_document, shard_per_sequence
from evenstep.plan.sharding.varlen import varlen_arguments
from shardings import shardings
from tiny_causal import (
    VOCABULARY,
    Attention,
    TinyCausal,
    documents,
    gradient,
    one_at_a_time,
)


def of_all_ranks(sharding: Sharding) -> Attention:
    """Attention of the ranks' shards one after the other, as an all-gather makes them."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        outputs = []
        for rank, queries in enumerate(q.split(sharding.tokens.tolist(), dim=2)):
            arguments = varlen_arguments(sharding, rank)
            positions = torch.from_numpy(arguments.gathered(sharding))
            begins, ends = arguments.cu_seqlens_q.tolist(), arguments.cu_seqlens_k.tolist()
            for i in range(len(begins) - 1):
                own = queries[:, :, begins[i] : begins[i + 1]]
                keys = positions[ends[i] : ends[i + 1]]
                mask = torch.ones(own.shape[2], len(keys), dtype=torch.bool)
                mask = mask.tril(len(keys) - own.shape[2])  # aligned bottom right
                outputs.append(
                    scaled_dot_product_attention(own, k[:, :, keys], v[:, :, keys], attn_mask=mask)
                )
        return torch.cat(outputs, 2)

    return attend


def add_gradients(
    model: TinyCausal,
    rows: list[tuple[dict[str, Any], Sharding]],
    reduction: str,
    total: int,
    ranks: int,
) -> None:
    """Each rank's scaled loss backward; gradients of parameters add up over ranks."""
    for batch, sharding in rows:
        shards = [shard_batch(batch, sharding, rank) for rank in range(sharding.ranks)]
        logits = model(
            torch.cat([shard["input_ids"] for shard in shards], 1),
            torch.cat([shard["position_ids"] for shard in shards], 1),
            of_all_ranks(sharding),
        )
        for own, shard in zip(logits.split(sharding.tokens.tolist(), dim=1), shards):
            labels = shard["shift_labels"][0]
            supervised = int((labels != -100).sum())
            scale = shard_loss_scale(supervised, total, ranks, reduction=reduction)
            loss = cross_entropy(own.view(-1, VOCABULARY), labels, reduction=reduction)
            (loss * scale).backward(retain_graph=True)


def check(
    samples: list[list[dict[str, Any]]], shards: list[Sharding], reduction: str, **padding: int
) -> None:
    """The averaged gradient of all ranks of all rows is that of all documents, each alone."""
    model = TinyCausal()
    total = sum(int((s["labels"][1:] != -100).sum()) for group in samples for s in group)
    truth = one_at_a_time(model, [s for group in samples for s in group])[2] / max(total, 1)
    ranks = sum(sharding.ranks for sharding in shards)
    rows = [(PackCollator(**padding)(group), sharding) for group, sharding in zip(samples, shards)]
    add_gradients(model, rows, reduction, total, ranks)
    torch.testing.assert_close(gradient(model) / ranks, truth, rtol=1e-9, atol=1e-12)


@settings(max_examples=15)
@given(
    st.data(),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=2),
    st.sampled_from(["mean", "sum"]),
    st.booleans(),
)
def test_the_averaged_gradient_of_all_ranks_is_that_of_the_whole_rows(
    data, groups, reduction, padded
):
    padding = {"pad_documents_to_multiple_of": 4} if padded else {}
    samples = [documents(lengths, seed) for seed, lengths in enumerate(groups)]
    lengths = [document_lengths(PackCollator(**padding)(group)).tolist() for group in samples]
    drawn = [data.draw(shardings(each, most=3)) for each in lengths]
    check(samples, drawn, reduction, **padding)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("make", [shard_per_document, shard_per_sequence])
def test_a_shard_without_supervised_tokens_adds_nothing(make, reduction):
    samples = documents([8, 1])
    samples[0]["labels"] = torch.full((8,), -100)
    samples[0]["labels"][2] = 3  # predicted from token 1 alone
    sharding = make([8, 1], 3)
    batch = PackCollator()(samples)
    counts = [
        int((shard_batch(batch, sharding, rank)["shift_labels"] != -100).sum()) for rank in range(3)
    ]
    assert sorted(counts) == [0, 0, 1]
    check([samples], [sharding], reduction)


def test_without_a_supervised_token_anywhere_nothing_is_learnt():
    samples = [{"input_ids": torch.arange(5), "labels": torch.full((5,), -100)}]
    model, sharding = TinyCausal(), shard_per_document([5], 2)
    for reduction in ("mean", "sum"):
        add_gradients(model, [(PackCollator()(samples), sharding)], reduction, 0, 2)
        assert not gradient(model).any()


def test_only_a_sum_is_a_number_on_a_shard_without_supervised_tokens():
    labels = torch.full((3,), -100)
    losses = {}
    for reduction in ("mean", "sum"):
        logits = torch.randn(3, 5, requires_grad=True)
        scale = shard_loss_scale(0, 7, 4, reduction=reduction)
        losses[reduction] = cross_entropy(logits, labels, reduction=reduction) * scale
        losses[reduction].backward()
        assert logits.grad is not None
        assert not logits.grad.any()
    assert losses["mean"].isnan()
    assert losses["sum"] == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 2**31))
def test_scales_turn_the_mean_over_ranks_into_the_mean_over_tokens(counts, seed):
    rng = np.random.default_rng(seed)
    losses = [rng.exponential(size=count) for count in counts]
    whole = np.concatenate(losses).mean() if sum(counts) else 0.0
    for reduction in ("mean", "sum"):
        scales = [
            shard_loss_scale(c, sum(counts), len(counts), reduction=reduction) for c in counts
        ]
        averaged = sum(
            scale * getattr(own, reduction)() for scale, own in zip(scales, losses) if len(own)
        )
        assert averaged / len(counts) == pytest.approx(whole, rel=1e-12)


def test_counts_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="'none' must be one of"):
        shard_loss_scale(1, 1, 1, reduction="none")
    with pytest.raises(ConfigurationError, match="5 supervised tokens of this rank, 4 of all 2"):
        shard_loss_scale(5, 4, 2)
    with pytest.raises(ConfigurationError, match="sum over all ranks"):
        shard_loss_scale(0, 0, 0)
