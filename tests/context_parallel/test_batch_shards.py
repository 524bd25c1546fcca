"""Shards of a packed batch: rows, labels and losses of each rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from drawn_documents import DRAWN, samples_of
from evenstep.batch import PackCollator, shard_loss_scale
from evenstep.context_parallel import document_lengths, shard_batch, unshard
from evenstep.errors import CollateError
from evenstep.plan.sharding import shard_per_document, shard_per_sequence
from shardings import shardings

paddings = st.sampled_from(
    [{}, {"pad_documents_to_multiple_of": 4}, {"pad_to_multiple_of": 7}]
)  # none, of every document, and a last document of padding only


@given(st.data(), DRAWN, paddings)
def test_a_token_is_asked_for_the_next_of_its_document_wherever_that_lies(data, docs, padding):
    samples = samples_of(docs)
    batch = PackCollator(**padding)(samples)
    lengths = document_lengths(batch)
    sharding = data.draw(shardings(lengths.tolist()))
    for rank in range(sharding.ranks):
        shard = shard_batch(batch, sharding, rank)
        expected = []
        for fragment in range(sharding.offsets[rank], sharding.offsets[rank + 1]):
            document = sharding.document[fragment]
            # What fills up the row is a document of padding behind the samples.
            labels = samples[document]["labels"] if document < len(samples) else []
            for token in range(sharding.start[fragment], sharding.end[fragment]):
                expected.append(labels[token + 1] if token + 1 < len(labels) else -100)
        assert shard["shift_labels"].tolist() == [expected]
        assert shard["shift_labels"].dtype == torch.int64
        assert "labels" not in shard


@given(st.data(), DRAWN, paddings)
def test_shards_put_together_are_the_row_again(data, docs, padding):
    samples = samples_of(docs)
    for sample in samples:
        sample["weights"] = [[float(token), 1.0] for token in sample["input_ids"]]
    batch = PackCollator(**padding)(samples)
    sharding = data.draw(shardings(document_lengths(batch).tolist()))
    shards = [shard_batch(batch, sharding, rank) for rank in range(sharding.ranks)]
    for name in ("input_ids", "position_ids", "weights", "document_ids"):
        assert shards[0][name].dtype == batch[name].dtype
        assert torch.equal(unshard([shard[name] for shard in shards], sharding), batch[name])
    whole = torch.arange(3 * batch["input_ids"].shape[1]).view(3, 1, -1)
    positions = [torch.from_numpy(sharding.indices(rank)) for rank in range(sharding.ranks)]
    parts = [whole[..., own] for own in positions]
    assert torch.equal(unshard(parts, sharding, dim=-1), whole)


@given(st.data(), DRAWN)
def test_labels_that_the_dataset_has_shifted_are_taken_as_they_are(data, docs):
    samples = samples_of(docs)
    for sample in samples:
        sample["labels"] = [*sample["labels"][1:], -100]
    batch = PackCollator(mask_first_label=False)(samples)
    sharding = data.draw(shardings(document_lengths(batch).tolist()))
    for rank in range(sharding.ranks):
        shard = shard_batch(batch, sharding, rank, labels_shifted=True)
        own = batch["labels"][:, sharding.indices(rank)]
        assert torch.equal(shard["shift_labels"], own)


def test_what_is_not_per_token_goes_along_whole():
    samples = [
        {
            "input_ids": [1, 2, 3],
            "name": name,
            "weight": weight,
            "image_grid_thw": [[1, 1, 1], [1, 1, 2]],
            "pixel_values": torch.ones(3, 4),
            "box": torch.zeros(2),
        }
        for name, weight in (("a", 1.0), ("b", 2.0))
    ]
    batch = PackCollator()(samples)
    before = dict(batch)
    sharding = shard_per_sequence(document_lengths(batch), 2)
    shard = shard_batch(batch, sharding, 1)
    for name in ("name", "weight", "image_grid_thw", "pixel_values", "box", "cu_seqlens"):
        assert shard[name] is batch[name]
    assert shard["max_seqlen"] == 3
    assert shard["sharding"] is sharding
    assert batch.keys() == before.keys()
    assert all(batch[name] is value for name, value in before.items())


def test_labels_that_cannot_be_moved_to_the_token_before_are_refused():
    sharding = shard_per_document([2, 3], 2)
    samples = [{"input_ids": [1] * n, "labels": n} for n in (2, 3)]
    with pytest.raises(CollateError, match="one label per token"):
        shard_batch(PackCollator()(samples), sharding, 0)
    shifted = [{"input_ids": [1] * n, "labels": [1] * n} for n in (2, 3)]
    with pytest.raises(CollateError, match="labels_shifted=True"):
        shard_batch(PackCollator(mask_first_label=False)(shifted), sharding, 0)
    soft = [{"input_ids": [1] * n, "labels": [0.5] * n} for n in (2, 3)]
    with pytest.raises(CollateError, match="float32 cannot be sharded"):
        shard_batch(PackCollator()(soft), sharding, 0)
    positions = [{"input_ids": [1] * n, "position_ids": torch.zeros(3, n)} for n in (2, 2)]
    with pytest.raises(CollateError, match=r"'position_ids' of shape \(2, 3, 2\)"):
        shard_batch(PackCollator()(positions), shard_per_document([2, 2], 2), 0)


# Losses


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
