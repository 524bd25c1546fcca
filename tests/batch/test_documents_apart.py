"""No token of a packed row sees another document: on a real model, logits and gradients are those
of every document alone, whatever form the row takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from evenstep.batch import PackCollator
from evenstep.batch.formats import (
    attention_mask,
    to_hugging_face,
    to_megatron,
    to_torchtitan,
)
from tiny_causal import (
    VOCABULARY,
    Attention,
    TinyCausal,
    by_mask,
    by_pieces,
    documents,
    gradient,
    one_at_a_time,
    shifted,
)

LENGTHS = [1, 7, 1, 1, 12, 3, 8, 1]
PADDINGS = {
    "bare": {},
    "documents": {"pad_documents_to_multiple_of": 4},
    "row": {"pad_to_multiple_of": 16},
    "both": {"pad_documents_to_multiple_of": 4, "pad_to_multiple_of": 16},
}
Made = tuple[Attention, torch.Tensor, torch.Tensor, torch.Tensor]
"""An attention, and tokens, positions and shifted labels, all of them [1, T]."""


def with_bool_mask(batch: dict[str, Any]) -> Made:
    attend = by_mask(attention_mask(batch))
    return attend, batch["input_ids"], batch["position_ids"], shifted(batch["labels"])


def with_boundaries(batch: dict[str, Any]) -> Made:
    form = to_hugging_face(batch)
    bounds = form["cu_seq_lens_q"]
    attend = by_pieces(bounds[:-1].tolist(), bounds.diff().tolist())
    return attend, form["input_ids"], form["position_ids"], shifted(form["labels"])


def with_torchtitan(batch: dict[str, Any]) -> Made:
    """Documents begin where positions are 0."""
    inputs, labels = to_torchtitan(batch)
    document = (inputs["positions"][0] == 0).cumsum(0)
    attend = by_mask((document[:, None] == document).tril())
    return attend, inputs["input"], inputs["positions"], labels


def with_megatron(batch: dict[str, Any]) -> Made:
    fields, packed = to_megatron(batch)
    packed = packed if isinstance(packed, dict) else vars(packed)
    places = packed["cu_seqlens_q_padded"]
    lengths = packed["cu_seqlens_q"]
    attend = by_pieces((lengths if places is None else places).tolist(), lengths.diff().tolist())
    assert torch.equal(fields["loss_mask"] == 1, fields["labels"] != -100)
    return attend, fields["tokens"], fields["position_ids"], fields["labels"]


FORMS = [
    with_bool_mask,
    with_boundaries,
    with_torchtitan,
    with_megatron,
]


def real_places(batch: dict[str, Any]) -> torch.Tensor:
    """Where the real tokens of the row are."""
    starts = batch.get("cu_seqlens_padded", batch["cu_seqlens"])[:-1]
    lengths = batch["cu_seqlens"].diff()
    return torch.cat([torch.arange(n) + at for at, n in zip(starts.tolist(), lengths.tolist())])


@pytest.mark.parametrize(
    ("form", "padding"),
    [
        pair
        for number, form in enumerate(FORMS)
        for pair in ((form, list(PADDINGS)[number % 3]), (form, "both"))
    ],
)
def test_logits_and_gradients_are_those_of_every_document_alone(
    form: Callable[[dict[str, Any]], Made], padding: str
) -> None:
    model, samples = TinyCausal(), documents(LENGTHS)
    logits, loss, truth = one_at_a_time(model, samples)
    batch = PackCollator(pad_token_id=VOCABULARY - 1, **PADDINGS[padding])(samples)
    attend, tokens, positions, labels = form(batch)
    out = model(tokens, positions, attend)
    assert_close(out[0, real_places(batch)], logits)
    packed_loss = cross_entropy(out[0], labels[0], reduction="sum")
    assert_close(packed_loss, loss)
    packed_loss.backward()
    assert_close(gradient(model), truth)
