"""Packed rows for encoders of transformers: each document as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import evenstep
from evenstep.batch import PackCollator, to_hugging_face
from evenstep.batch.formats.hugging_face import is_encoder
from evenstep.errors import CollateError

transformers = pytest.importorskip("transformers")

LENGTHS = [7, 30, 1, 3, 41]
KINDS = (
    *("albert", "bert", "camembert", "data2vec-text", "distilbert", "electra", "ernie", "eurobert"),
    *("ibert", "jina_embeddings_v3", "megatron-bert", "modernbert", "mpnet", "nomic_bert"),
    *("rembert", "roberta", "roberta-prelayernorm", "squeezebert", "xlm-roberta"),
)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "embedding_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "num_labels": 5,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "cls_token_id": 0,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "mask_token_id": 3,
}


def config_of(kind: str) -> Any:
    try:
        config = transformers.AutoConfig.for_model(kind, **SIZES)
    except ValueError:
        pytest.skip(f"this release of transformers has no {kind}")
    if kind == "modernbert":  # most of its layers see few tokens at a time
        config.local_attention, config.global_attn_every_n_layers = 8, 2
    return config


def model_of(kind: str, attention: str) -> Any:
    config = config_of(kind)
    try:
        model = transformers.AutoModelForTokenClassification.from_config(
            config, attn_implementation=attention
        )
    except ValueError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def documents(lengths: list[int]) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(5, 60, (length,), generator=made),
            "labels": torch.randint(0, 5, (length,), generator=made),
        }
        for length in lengths
    ]


def gradient_of(model: Any) -> torch.Tensor:
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return torch.cat(parts)


def alone(model: Any, samples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of documents one by one, and the gradient of their mean loss."""
    total = sum(len(sample["labels"]) for sample in samples)
    logits = []
    for sample in samples:
        out = model(input_ids=sample["input_ids"][None], labels=sample["labels"][None])
        logits.append(out.logits[0].detach())
        (out.loss * len(sample["labels"]) / total).backward()
    return torch.cat(logits), gradient_of(model)


@pytest.mark.parametrize(
    ("kind", "attention", "padded"),
    [(kind, ("sdpa", "eager")[n % 2], n % 4 < 2) for n, kind in enumerate(KINDS)],
)
def test_each_document_is_as_if_it_were_alone(kind, attention, padded):
    model = model_of(kind, attention)
    options = {"pad_documents_to_multiple_of": 8, "pad_to_multiple_of": 128} if padded else {}
    samples = documents(LENGTHS)
    row = PackCollator(mask_first_label=False, **options)(samples)
    form = to_hugging_face(row, model=model)
    out = model(**form)
    out.loss.backward()
    found = gradient_of(model)
    logits, wanted = alone(model, samples)
    real = form["labels"][0] != -100
    torch.testing.assert_close(out.logits[0, real], logits, rtol=1e-5, atol=1e-5)
    assert (found - wanted).norm() / wanted.norm() < 1e-5
    assert is_encoder(model.config)


def test_labels_that_are_no_copy_of_the_tokens_need_the_model():
    row = PackCollator(mask_first_label=False)(documents(LENGTHS))
    with pytest.raises(CollateError, match=r"pass model=model, if its loss does not shift them"):
        to_hugging_face(row)
    masked = PackCollator()(documents(LENGTHS))
    with pytest.raises(CollateError, match=r"batch.to_hugging_face\(batch, model=model\)"):
        to_hugging_face(masked)
    with pytest.raises(CollateError, match="first labels of documents"):
        to_hugging_face(row, model=transformers.LlamaConfig())
    floats = {**row, "labels": row["labels"].float() / 2}
    with pytest.raises(CollateError, match="first labels of documents"):
        to_hugging_face(floats)


@pytest.mark.parametrize("kind", ["T5", "Bart", "DebertaV2", "BigBird", "Funnel"])
def test_a_kind_of_model_that_is_not_known_is_refused(kind):
    row = PackCollator(mask_first_label=False)(documents(LENGTHS))
    with pytest.raises(CollateError, match="is not known, and documents might see each other"):
        to_hugging_face(row, model=getattr(transformers, f"{kind}Config")())


def test_a_decoder_of_an_encoders_kind_is_causal():
    tokens = [{"input_ids": sample["input_ids"]} for sample in documents(LENGTHS)]
    form = to_hugging_face(PackCollator()(tokens), model=transformers.BertConfig(is_decoder=True))
    assert "attention_mask" not in form
    assert form["use_cache"] is False


def test_a_collate_function_that_prepares_packs_for_an_encoder():
    model = model_of("roberta", "sdpa")
    rows = [{"text": [int(t) for t in s["input_ids"]]} for s in documents([4, 9, 2, 5, 7, 3])]

    def collate(given: list[Any]) -> dict[str, torch.Tensor]:
        width = max(len(row["text"]) for row in given)
        tokens = torch.tensor([row["text"] + [1] * (width - len(row["text"])) for row in given])
        mask = (tokens != 1).long()
        return {
            "input_ids": tokens,
            "attention_mask": mask,
            "labels": (tokens % 5).masked_fill(mask == 0, -100),
        }

    options: dict[str, Any] = {
        "policy": evenstep.Even(max_tokens=16, packed=True),
        "length_fn": evenstep.SampleCounts(supervised=lambda sample: len(sample["input_ids"])),
    }
    preparing = evenstep.PreparingCollator(collate_fn=collate, config=model.config)
    seen = 0
    for batch, step in evenstep.DataLoader(rows, collate_fn=preparing, **options).steps():
        logits = model(**{name: batch[name] for name in batch if name != "labels"}).logits[0]
        texts = [torch.tensor([rows[i]["text"]]) for i in step.indices]
        wanted = torch.cat([model(input_ids=text).logits[0] for text in texts])
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(batch["labels"], torch.cat(texts, dim=1) % 5)
        seen += len(texts)
    assert seen == len(rows)
    with pytest.raises(CollateError, match="where PreparingCollator packs, pass config="):
        list(evenstep.DataLoader(rows, collate_fn=collate, **options))
