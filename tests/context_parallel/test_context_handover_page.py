"""The code of docs/context-parallelism.md runs, with stand-ins for what may not be installed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from threaded_ranks import varlen
from torch.nn.functional import cross_entropy

import page_code
from evenstep.batch import PackCollator, attention_mask, to_megatron
from evenstep.context_parallel import document_lengths, shard_batch
from evenstep.plan.sharding import Sharding, shard_per_document, shard_per_sequence
from tiny_causal import (
    TinyCausal,
    by_mask,
    by_pieces,
    documents,
    gradient,
    one_at_a_time,
    tiny_qwen,
)

SAMPLES = documents([5, 1, 9, 3, 12, 2])
RANKS = 4
run_page = partial(page_code.run_page, "context-parallelism.md")


def whole_row(model: TinyCausal, batch: dict[str, Any]) -> torch.Tensor:
    return model(batch["input_ids"], batch["position_ids"], by_mask(attention_mask(batch)))


def supervised(shard: dict[str, Any]) -> int:
    return int((shard["shift_labels"] != -100).sum())


def test_the_shard_of_a_rank():
    tiny, batch = TinyCausal(), PackCollator()(SAMPLES)
    counts = [
        supervised(shard_batch(batch, shard_per_document(document_lengths(batch), RANKS), rank))
        for rank in range(RANKS)
    ]
    for rank in range(RANKS):

        def model(tokens: torch.Tensor, positions: torch.Tensor, sharding: Sharding) -> Any:
            own = sharding.indices(rank)  # noqa: B023  called before the next round
            assert torch.equal(tokens, batch["input_ids"][:, own])
            assert torch.equal(positions, batch["position_ids"][:, own])
            return whole_row(tiny, batch)[:, own]

        names = {"batch": batch, "rank": rank, "model": model}
        run_page("The shard of a rank", **names, supervised=counts[rank], total=sum(counts))
    found = gradient(tiny) / RANKS
    torch.testing.assert_close(found, one_at_a_time(tiny, SAMPLES) / sum(counts))


def test_models_of_transformers():
    model = tiny_qwen()
    batch = PackCollator()(SAMPLES)
    sharding = shard_per_document(document_lengths(batch), RANKS)
    for rank in range(RANKS):
        shard = shard_batch(batch, sharding, rank)
        outputs = run_page(
            "Models of transformers", model=model, shard=shard, total=19, ranks=RANKS
        )
        expected = cross_entropy(
            outputs["outputs"].logits[0], shard["shift_labels"][0], reduction="sum"
        )
        torch.testing.assert_close(outputs["outputs"].loss, expected / 19)


def test_variable_length_kernels():
    def varlen_attention(*given: Any, causal: bool) -> torch.Tensor:
        assert causal
        return varlen(*given, 8**-0.5)

    batch = PackCollator()(SAMPLES)
    sharding = shard_per_sequence(document_lengths(batch), RANKS)
    q, k, v = torch.randn(3, batch["input_ids"].shape[1], 2, 8)
    heads = (x.transpose(0, 1)[None] for x in (q, k, v))
    truth = by_mask(attention_mask(batch))(*heads)[0].transpose(0, 1)
    for rank in range(RANKS):
        own = sharding.indices(rank)
        names = run_page(
            "Variable-length kernels",
            sharding=sharding,
            rank=rank,
            query=q[own],
            gathered_keys=k[sharding.permutation],
            gathered_values=v[sharding.permutation],
            varlen_attention=varlen_attention,
        )
        torch.testing.assert_close(names["output"], truth[own])


def test_megatron():
    """A model that attends as `PackedSeqParams` says gives every rank its part of the row."""
    tiny = TinyCausal()
    batch = PackCollator(pad_documents_to_multiple_of=2 * RANKS)(SAMPLES)
    sharding = shard_per_document(document_lengths(batch), RANKS)
    whole, _ = to_megatron(batch, context_parallel_size=RANKS)
    for rank in range(RANKS):

        def model(tokens, position_ids, attention_mask, *, labels, loss_mask, packed_seq_params):
            if not isinstance(packed_seq_params, dict):
                packed_seq_params = vars(packed_seq_params)
            bounds = packed_seq_params["cu_seqlens_q"]
            attend = by_pieces(bounds[:-1].tolist(), bounds.diff().tolist())
            own = sharding.indices(rank)  # noqa: B023  called before the next round
            logits = tiny(batch["input_ids"], batch["position_ids"], attend)[0, own]
            assert torch.equal(tokens, whole["tokens"][:, own])
            assert attention_mask is None
            losses = cross_entropy(logits, labels.clamp(min=0)[0], reduction="none")[None]
            return losses * loss_mask

        losses = run_page("Megatron-LM", batch=batch, sharding=sharding, rank=rank, model=model)[
            "losses"
        ]
        losses.sum().backward()
    found = gradient(tiny)
    torch.testing.assert_close(found, one_at_a_time(tiny, SAMPLES))
