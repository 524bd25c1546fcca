"""Trainer and TRL's SFTTrainer over a dataset that opens its file in its first ``__getitem__``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from open_handles import Handle, Unmarked
from tiny_trainer import arguments, tiny_config
from transformers import LlamaForCausalLM, Trainer

import evenstep
from evenstep.integrations import transformers as even

N = 3000


class Reading(LlamaForCausalLM):
    """Notes what each sample asked for and got; computes nothing of size."""

    def __init__(self) -> None:
        super().__init__(tiny_config())
        self.seen: list[tuple[list[int], list[int]]] = []

    def forward(self, input_ids=None, labels=None, asked=None, got=None, **others):  # type: ignore
        if asked is None:
            return super().forward(input_ids=input_ids, labels=labels, **others)
        self.seen.append((asked.tolist(), got.tolist()))
        return {"loss": self.lm_head.weight[0, 0] * 0.0}


class Pad:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls += 1
        return evenstep.PadCollator()(samples)


def train(trainer: Any, **options: Any) -> tuple[list[int], list[int]]:
    policy = evenstep.Even(max_tokens=2048)
    even.install(trainer, policy=policy, **options).train()
    seen = trainer.model.seen
    return sum((each[0] for each in seen), []), sum((each[1] for each in seen), [])


def settings(folder: Path) -> Any:
    return arguments(folder, remove_unused_columns=False, dataloader_num_workers=2)


@pytest.mark.parametrize("options", [{}, {"packed": False, "update_tokens": 8000}])
def test_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    dataset: Handle = Unmarked(tmp_path, N)
    before, collate_fn = copy.copy(vars(dataset)), Pad()
    trainer = Trainer(
        model=Reading(),
        args=settings(tmp_path / "out"),
        train_dataset=dataset,
        data_collator=collate_fn,
    )
    asked, got = train(trainer, **options)
    assert sorted(asked) == list(range(N))
    assert got == asked
    assert vars(dataset) == before
    assert collate_fn.calls == 0


class Decoded:
    """A transform of a Hugging Face dataset, which opens a file when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.inner = Unmarked(folder, N)

    def __call__(self, rows: dict[str, list[int]]) -> dict[str, Any]:
        samples = [self.inner[index] for index in rows["index"]]
        return {name: [sample[name] for sample in samples] for name in samples[0]}


def test_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    decoded, collate_fn = Decoded(tmp_path), Pad()
    dataset = datasets.Dataset.from_dict({"index": list(range(N))}).with_transform(decoded)
    args = trl.SFTConfig(
        **{
            **settings(tmp_path / "out").to_dict(),
            "dataset_kwargs": {"skip_prepare_dataset": True},
            "max_length": None,
        }
    )
    trainer = trl.SFTTrainer(
        model=Reading(), args=args, train_dataset=dataset, data_collator=collate_fn,
        processing_class=tokenizer(),
    )  # fmt: skip
    asked, got = train(trainer, packed=False)
    assert sorted(asked) == list(range(N))
    assert got == asked
    assert decoded.inner.handle is None
    assert collate_fn.calls == 0


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "a"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
