"""The gradient of an update of packed batches is that of its samples, each alone."""

from __future__ import annotations

import itertools
from importlib.metadata import version
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import Seen, Witness, arguments, gathered, tokenizer
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
)
from update_checks import alone, documents_in

import evenstep
from documents import VOCABULARY, Documents
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.skipif(
    int(version("transformers").split(".")[0]) < 5,
    reason="before, documents of a row see each other, but for flash attention",
)

POLICY = evenstep.Even(max_tokens=64)
N = 48
DATA = Documents(N, longest=24, prompts=True, seed=3)
SAMPLES = [{k: DATA[i][k].tolist() for k in ("input_ids", "labels")} for i in range(N)]


def by_boundaries(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **others: Any
) -> Any:
    """Attention as a kernel for rows of several lengths computes it: by `cu_seq_lens_q`."""
    bounds = others.get("cu_seq_lens_q")
    ends = [0, query.shape[2]] if bounds is None else bounds.tolist()
    parts = []
    for begin, end in itertools.pairwise(ends):
        q, k, v = (x[:, :, begin:end] for x in (query, key, value))
        later = torch.ones(end - begin, end - begin, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) * others["scaling"]).masked_fill(later, -torch.inf)
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def train(
    folder: Any, attention: str, accumulate: int = 1, *, policy: Any = POLICY, **options: Any
) -> tuple[Trainer, Seen]:
    """The trainer, and the batches that its model was given."""
    model, seen = llama(attention), Seen()

    def note(model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if model.training:
            seen.samples[-1].append(kwargs)

    model.register_forward_pre_hook(note, with_kwargs=True)
    trainer = Trainer(
        model=model,
        args=arguments(folder, gradient_accumulation_steps=accumulate),
        train_dataset=SAMPLES,
        data_collator=DataCollatorForSeq2Seq(tokenizer(), return_tensors="pt"),
    )
    trainer.add_callback(Witness(seen))
    even.install(trainer, policy=policy, **options).train()
    return trainer, seen


def check(model: Any, seen: Seen) -> None:
    known = {tuple(sample["input_ids"]): i for i, sample in enumerate(SAMPLES)}
    updates = [
        [known[each] for row in rows for each in documents_in(row)] for rows in seen.samples if rows
    ]
    same = zip(*gathered(updates), strict=True)
    updates = [[i for rank in update for i in rank] for update in same]
    bearing = [i for i in range(N) if (DATA[i]["labels"][1:] != -100).any()]
    assert sorted(i for update in updates for i in update) == bearing
    for update, gradient in zip(updates, seen.gradients, strict=True):
        _, expected = alone(model, DATA, update)
        limit = 1e-5 * expected.abs().max()
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=limit)


def packs(rank: Rank | None, folder: Any, attention: str, accumulate: int = 1) -> None:
    if rank is not None:
        as_rank(rank)
    AttentionInterface.register("by_boundaries", by_boundaries)
    AttentionMaskInterface.register("by_boundaries", lambda *args, **options: None)
    trainer, seen = train(folder, attention, accumulate, packed=True)
    # DDP reduces gradients at the end of an update.
    sync = trainer.callback_handler.train_dataloader.loader.policy.sync
    assert sync == ("step" if rank is None else "update")
    assert all(len(row["input_ids"]) == 1 for rows in seen.samples for row in rows)
    check(trainer.model, seen)


@pytest.mark.parametrize("attention", ["sdpa", "by_boundaries"])
def test_packed_rows_keep_documents_apart(attention: str, tmp_path: Any) -> None:
    packs(None, tmp_path, attention)


def test_packed_on_two_ranks(tmp_path: Any) -> None:
    run(packs, 2, tmp_path, "sdpa", 3, folder=tmp_path, within=150)


def test_a_model_that_lets_documents_see_each_other_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.__version__", "4.57.6")
    with pytest.raises(ConfigurationError, match="see each other under attention 'sdpa'"):
        train(tmp_path, "sdpa", packed=True)
