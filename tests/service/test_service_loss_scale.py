"""The gradient, averaged over all clients, is that of one big batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from service_world import job_of, sources, squares, steps_of, tokens_of_row, with_prompt

import evenstep.service as es
from evenstep.batch import PadCollator
from evenstep.data import open_reader
from evenstep.errors import CollateError

VOCABULARY = 8192


class Bigram(torch.nn.Module):
    """Predicts a token from the one before, so rows and shards of them give the same losses."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator))
        self.out = torch.nn.Parameter(torch.randn(6, 64, generator=generator))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens % VOCABULARY] @ self.out


def targets(batch: dict[str, Any]) -> torch.Tensor:
    if "shift_labels" in batch:
        return batch["shift_labels"]
    labels = torch.full_like(batch["labels"], -100)
    labels[:, :-1] = batch["labels"][:, 1:]
    return labels


def gradient(loss: torch.Tensor, model: Bigram) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def of_clients(service: Any, ranks: int, number: int, model: Bigram, reduction: str) -> Any:
    """Averaged over ranks, the sum over micro-batches of scaled losses' gradients."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    samples = []
    for rank in range(ranks):
        batches, step = steps_of(service.client(rank), number + 1)[number]
        for batch, scale in zip(batches, step.loss_scales):
            wanted = targets(batch).flatten() % 64
            wanted = torch.where(targets(batch).flatten() == -100, -100, wanted)
            logits = model(batch["input_ids"]).flatten(0, 1)
            loss = F.cross_entropy(logits, wanted, reduction=reduction) * scale
            if scale:
                total = [t + g / ranks for t, g in zip(total, gradient(loss, model))]
        samples += [i for ids in step.sample_ids for i in ids]
    return total, samples


def of_one_batch(given: list[es.Source], ids: set[Any], model: Bigram) -> list[torch.Tensor]:
    logits, wanted = [], []
    for source in given:
        with open_reader(source, seed=3) as reader:
            for item in reader.read(passes=1):
                if (source.name, item.shard, item.index) in ids:
                    tokens = torch.tensor(item.sample["input_ids"])
                    labels = torch.tensor(item.sample.get("labels") or item.sample["input_ids"])
                    logits.append(model(tokens[:-1]))
                    wanted.append(torch.where(labels[1:] == -100, -100, labels[1:] % 64))
    return gradient(F.cross_entropy(torch.cat(logits), torch.cat(wanted)), model)


def labelled_in_one_source(row: Mapping[str, Any]) -> dict[str, Any]:
    return with_prompt(row) if row["id"] < 2000 else tokens_of_row(row)


def labelled_now_and_then(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["id"] % 3:
        return labelled_in_one_source({**row, "id": row["id"] % 3 * 1000})
    return {**tokens_of_row(row), "labels": None}


def at(axis: str) -> Any:
    def strategy(graph: Any, mesh: Any, step: int) -> Any:
        return graph.mix().distribute(axis).cost(squares).balance("greedy").plan()

    return strategy


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"DP": 3}, {}),
        ({"DP": 2, "CP": 2}, {"loss_reduction": "sum"}),
        ({"DP": 2, "CP": 2}, {"sharding": None}),
        ({"DP": 2, "CP": 2}, {"strategy": at("CP")}),
        ({"DP": 1, "CP": 2, "TP": 2}, {}),
        ({"DP": 3}, {"transform": labelled_now_and_then}),
        ({"DP": 2}, {"transform": labelled_in_one_source, "collate": "pad"}),
        (
            {"DP": 2},
            {
                "transform": labelled_now_and_then,
                "collate": PadCollator(side="left"),
                "loss_reduction": "sum",
            },
        ),
        ({"DP": 2, "CP": 2}, {"transform": labelled_now_and_then, "strategy": at("CP")}),
    ],
)
def test_scaled_losses_of_all_clients_give_the_gradient_of_one_big_batch(
    tmp_path: Path, sizes: dict[str, int], options: dict[str, Any], start: Any
) -> None:
    given = sources(tmp_path, transform=options.pop("transform", with_prompt))
    job = job_of(tmp_path, sources=given, mesh=es.Mesh(**sizes), **options)
    model, reduction = Bigram(), job.measures.loss_reduction
    with start(job) as service:
        for number in (0, 2):
            found, samples = of_clients(service, len(job.tree), number, model, reduction)
            ids = {(i.source, i.shard, i.index) for i in samples}
            expected = of_one_batch(given, ids, model)
            for a, b in zip(found, expected):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_wrong_count_of_tokens_that_bear_loss_is_refused(tmp_path: Path, start: Any) -> None:
    job = job_of(tmp_path, supervised=lambda sample: len(sample["input_ids"]))
    with start(job) as service, pytest.raises(CollateError, match="loss scales would be wrong"):
        next(service.client(0))
