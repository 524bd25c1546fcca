"""Collate functions of jobs: evenstep's, those of transformers, and what users write."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers as hf
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

import evenstep
from jobs.forms import WORDS
from jobs.job import Job
from jobs.kinds import KINDS, PAD


@cache
def tokenizer(side: str = "right") -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    words = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="</s>",
        mask_token="<mask>",
        padding_side=side,
    )


class Own:
    """What a user writes who has tensors of unequal lengths."""

    def __call__(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        (name, *_), batch = samples[0], {}
        tokens = [torch.as_tensor(sample[name]) for sample in samples]
        masks = [
            torch.as_tensor(sample.get("attention_mask", torch.ones(len(t)))).long()
            for sample, t in zip(samples, tokens)
        ]
        batch[name] = pad_sequence(tokens, batch_first=True, padding_value=PAD)
        batch["attention_mask"] = pad_sequence(masks, batch_first=True)
        if "labels" in samples[0]:
            labels = [torch.as_tensor(sample["labels"]) for sample in samples]
            batch["labels"] = (
                pad_sequence(labels, batch_first=True, padding_value=-100)
                if labels[0].ndim
                else torch.stack(labels)
            )
        return batch


class Preparing:
    """What a user writes who has raw rows of text."""

    def __init__(self) -> None:
        self.tokenizer = tokenizer()
        self.pad = Own()

    def __call__(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer([row["text"] for row in rows], return_attention_mask=False)
        answers = [torch.tensor(row["answer"]) for row in rows]
        return self.pad(
            [
                {"input_ids": torch.tensor(tokens), "labels": answer}
                for tokens, answer in zip(encoded["input_ids"], answers)
            ]
        )


def collate_of(job: Job, model: Any) -> Any:
    kind = KINDS[job.kind]
    name = job.collate
    if name == "none":
        return None
    if name == "pack":
        return evenstep.PackCollator(mask_first_label=job.reads == "causal")
    if name == "pack prepared":
        alone = evenstep.PadCollator()
        return evenstep.PreparingCollator(collate_fn=alone, config=model.config)
    if name in ("pad", "pad left", "pad 8"):
        return evenstep.PadCollator(
            side="left" if name == "pad left" else "right",
            pad_to_multiple_of=8 if name == "pad 8" else None,
            pad_values={"1": -100} if job.form == "tuple" else {},
        )
    if name.startswith("rows"):
        made = kind.collate_rows or Preparing()
        if name == "rows prepared":
            return evenstep.PreparingCollator(collate_fn=made)
        if kind.labeled == "own" and job.policy != "fixed batch":
            return evenstep.PreparingCollator(collate_fn=made)  # length_fn counts what it makes
        if job.packed and (kind.media or not kind.causal) and job.entry != "trainer":
            return evenstep.PreparingCollator(collate_fn=made, config=model.config)
        return made
    return {
        "own": Own,
        "torch": lambda: default_collate,
        "hf default": lambda: hf.default_data_collator,
        "hf padding": lambda: hf.DataCollatorWithPadding(tokenizer()),
        "hf padding left": lambda: hf.DataCollatorWithPadding(tokenizer("left")),
        "hf causal": lambda: hf.DataCollatorForLanguageModeling(tokenizer(), mlm=False),
        "hf seq2seq": lambda: hf.DataCollatorForSeq2Seq(tokenizer()),
        "hf seq2seq model": lambda: hf.DataCollatorForSeq2Seq(tokenizer(), model=model),
        "hf tokens": lambda: hf.DataCollatorForTokenClassification(tokenizer()),
        "hf flattening": lambda: hf.DataCollatorWithFlattening(),
    }[name]()
