from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import PackCollator
from evenstep.batch.formats import attention_mask, to_hugging_face
from evenstep.errors import CollateError
from tiny_causal import documents, tiny_qwen

transformers = pytest.importorskip("transformers")

LENGTHS = [1, 5, 1, 1, 9, 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_it_equals_what_transformers_own_collator_gives(lengths, seq_idx):
    samples = documents(lengths)
    theirs = transformers.DataCollatorWithFlattening(
        return_tensors="pt", return_flash_attn_kwargs=True, return_seq_idx=seq_idx
    )(samples)
    ours = to_hugging_face(PackCollator()(samples), seq_idx=seq_idx, use_cache=True)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert type(ours[name]) is type(value)
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(ours[name], value, rtol=0, atol=0)
        else:
            assert ours[name] == value


def truth_of(model: Any, samples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the gradient of the summed loss, one document at a time."""
    logits, losses = [], []
    for sample in samples:
        out = model(input_ids=sample["input_ids"][None], use_cache=False).logits[0]
        logits.append(out)
        losses.append(
            torch.nn.functional.cross_entropy(out[:-1], sample["labels"][1:], reduction="sum")
        )
    torch.stack(losses).sum().backward()
    return torch.cat(logits).detach(), gradient(model)


def gradient(model: Any) -> torch.Tensor:
    parts = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad(set_to_none=True)
    return parts


@pytest.mark.parametrize(
    ("attention", "told_by"), [("sdpa", "positions"), ("eager", "mask"), ("sdpa", "mask")]
)
def test_a_model_sees_every_document_alone(attention, told_by):
    model = tiny_qwen(attn_implementation=attention).double()
    samples = documents(LENGTHS)
    logits, truth = truth_of(model, samples)
    batch = PackCollator(pad_to_multiple_of=8)(samples)
    form = to_hugging_face(batch, use_cache=told_by == "mask")
    if told_by == "mask":
        dtype = torch.float64 if attention == "eager" else torch.bool
        form["attention_mask"] = attention_mask(batch, dtype=dtype)
    out = model(**form)
    torch.testing.assert_close(out.logits[0, : len(logits)], logits)
    supervised = sum(int((sample["labels"][1:] != -100).sum()) for sample in samples)
    (out.loss * supervised).backward()
    # The loss is computed in float32.
    torch.testing.assert_close(gradient(model), truth, rtol=1e-5, atol=1e-6)


def test_labels_that_a_model_would_shift_twice_are_refused():
    samples = [{"input_ids": [1, 2], "labels": [2, -100]}]
    with pytest.raises(CollateError, match="shift labels themselves"):
        to_hugging_face(PackCollator(mask_first_label=False)(samples))


def test_a_loss_mask_is_left_out_only_where_labels_say_the_same():
    samples = [{"input_ids": [1, 2, 3], "labels": [1, -100, 3], "name": "a"}]
    form = to_hugging_face(PackCollator(loss_mask=True)(samples))
    assert "loss_mask" not in form
    assert form["name"] == ["a"]
    samples[0]["loss_mask"] = [0, 1, 1]
    with pytest.raises(CollateError, match="loss_mask differs"):
        to_hugging_face(PackCollator()(samples))
