"""The samples of a job as its user has them: in mappings or tuples, of tensors, lists or
arrays, padded beforehand or not; and the datasets that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import pad
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from transformers import BatchEncoding

from jobs.job import Job
from jobs.kinds import FIRST, KINDS, PAD, VOCABULARY, Example

SAMPLES = 16
WORDS = ["<pad>", "<s>", "</s>", "<mask>", *(f"w{n}" for n in range(FIRST, VOCABULARY))]


@cache
def examples_of(kind: str, labels: str, seed: int) -> tuple[Example, ...]:
    """The job's samples as they are meant. No two have the same tokens."""
    random = np.random.default_rng(seed)
    made: dict[bytes, Example] = {}
    while len(made) < SAMPLES:
        example = KINDS[kind].example(random, labels, len(made))
        made.setdefault(example.tokens.numpy().tobytes(), example)
    return tuple(made.values())


def samples_of(job: Job) -> list[Any]:
    """The job's samples as the dataset gives them."""
    examples = examples_of(job.kind, job.labels, job.seed)
    widths = {"token": max(len(e.tokens) for e in examples)}
    if KINDS[job.kind].labeled == "own":
        widths["own"] = max(len(e.fields["labels"]) for e in examples)
    return [_sample(job, example, widths) for example in examples]


def _sample(job: Job, example: Example, widths: dict[str, int]) -> Any:
    kind = KINDS[job.kind]
    if job.form == "row":
        return row_of(example)
    fields = dict(example.fields)
    if job.labels == "none":
        del fields["labels"]
    if job.mask != "none":
        (name, tokens), *rest = fields.items()
        fields = {name: tokens, "attention_mask": torch.ones(len(tokens), dtype=torch.int64)}
        fields.update(rest)
    if job.mask in ("left", "right"):
        for name, value in fields.items():
            per = kind.labeled if name == "labels" else "token"
            if per in widths and name not in kind.media:
                lacking = widths[per] - len(value)
                sides = (0, lacking) if job.mask == "right" else (lacking, 0)
                fields[name] = pad(value, sides, value=-100 if name == "labels" else PAD)
        if job.mask == "left" and "labels" in fields and job.reads == "causal":
            # No careful user has it predicted from padding.
            fields["labels"][fields["attention_mask"].argmax()] = -100
    if "labels" in fields:
        fields[job.label] = fields.pop("labels")
    return _contained(job.form, {name: _held(job.values, each) for name, each in fields.items()})


def row_of(example: Example) -> Any:
    """A row before a collate function prepares it."""
    if example.row is not None:
        return example.row
    tokens, labels = (example.fields[name].tolist() for name in ("input_ids", "labels"))
    return {"text": " ".join(WORDS[token] for token in tokens), "answer": labels}


def _held(values: str, tensor: torch.Tensor) -> Any:
    if values == "lists":
        return tensor.tolist()
    if tensor.is_floating_point():
        tensor = tensor.float()
    return tensor.clone() if values == "tensors" else tensor.numpy().copy()


def _contained(form: str, fields: dict[str, Any]) -> Any:
    if form == "dict":
        return fields
    if form == "encoding":
        return BatchEncoding(fields)
    if form == "bare":
        return fields["input_ids"]
    assert form == "tuple"
    return tuple(fields.values())


class Mapped(Dataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Streamed(IterableDataset[Any]):
    """This rank's and worker's share."""

    def __init__(self, samples: list[Any], first: int, step: int) -> None:
        self.samples = samples[first::step]

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(self.samples[first::step])


def dataset_of(job: Job) -> Any:
    samples = samples_of(job)
    if job.data == "list":
        return samples
    if job.data == "map":
        return Mapped(samples)
    ranks = (dist.get_rank(), dist.get_world_size()) if job.ranks > 1 else (0, 1)
    return Streamed(samples, *ranks)
