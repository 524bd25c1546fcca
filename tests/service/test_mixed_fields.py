"""Samples of sources that have other fields: labels are made where some have none; anything else is
an error that names both sources, the field and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from service_world import Rows, balanced, new_job, steps_of

import evenstep.service as es
from evenstep.batch import PackCollator
from evenstep.errors import CollateError


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": [row["id"] + n for n in range(row["length"])]}


def with_score(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**plain(row), "score": 1.0}


def with_labels(row: Mapping[str, Any]) -> dict[str, Any]:
    sample = plain(row)
    return {**sample, "labels": [-100, -100, *sample["input_ids"][2:]]}


def with_other_labels(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**plain(row), "labels": [1] * row["length"]}


def packed_without_score(samples: Sequence[Mapping[str, Any]]) -> Any:
    return PackCollator()([{k: v for k, v in s.items() if k != "score"} for s in samples])


def job_of(chat: Any, collate: Any, web: Any = plain, **options: Any) -> es.Job:
    table = [{"id": 100 * k, "length": 4 + k % 5} for k in range(60)]
    given = {"web": web, "chat": chat}
    return new_job(
        sources=[es.Source(name, Rows(table), transform=made) for name, made in given.items()],
        mesh=es.Mesh(DP=1),
        strategy=balanced,
        max_tokens=60,
        collate=collate,
        **options,
    )


def rows_of(batch: Mapping[str, Any]) -> list[tuple[list[int], list[int]]]:
    """The tokens and labels of each sample."""
    if "cu_seqlens" in batch:
        bounds = batch["cu_seqlens"].tolist()
        parts = [(0, slice(a, b)) for a, b in pairwise(bounds)]
    else:
        parts = [(k, slice(0, n)) for k, n in enumerate(batch["attention_mask"].sum(1).tolist())]
    return [(batch["input_ids"][at].tolist(), batch["labels"][at].tolist()) for at in parts]


def with_shifted_labels(row: Mapping[str, Any]) -> dict[str, Any]:
    sample = with_labels(row)
    return {**sample, "labels": [*sample["labels"][1:], -100]}


@pytest.mark.parametrize(
    ("chat", "collate"),
    [(with_labels, "pack"), (with_labels, "pad"), (with_shifted_labels, "pack")],
)
def test_every_batch_has_labels_and_those_of_each_sample(chat: Any, collate: str) -> None:
    """Those that are made are shifted where the others are."""
    shifted = chat is with_shifted_labels
    measures = es.MeasureOptions(labels="every" if shifted else None)
    with es.start(job_of(chat, collate, measures=measures), backend="local") as service:
        taken = steps_of(service.client(0), 8)
    seen, first = set(), 0 if shifted else 1
    for batches, step in taken:
        for batch, ids in zip(batches, step.sample_ids, strict=True):
            for (tokens, labels), (source, _, index) in zip(rows_of(batch), ids, strict=True):
                row = {"id": 100 * index, "length": 4 + index % 5}
                assert tokens == plain(row)["input_ids"]
                made = [*tokens[1:], -100] if shifted else [-100, *tokens[1:]]
                wanted = made if source == "web" else chat(row)["labels"]
                assert labels[first:] == wanted[first:]
                assert shifted or labels[0] == -100
                seen.add(source)
        kept = [int((batch["labels"][:, first:] != -100).sum()) for batch in batches]
        assert step.supervised_tokens == sum(kept)
    assert seen == {"web", "chat"}


@pytest.mark.parametrize("collate", ["pack", "pad"])
@pytest.mark.parametrize(
    ("chat", "field", "why"),
    [
        (with_score, "score", ""),
        (with_other_labels, "labels", ", and the labels that there are do not show what these"),
    ],
)
def test_other_fields_are_refused_with_a_remedy(
    collate: str, chat: Any, field: str, why: str
) -> None:
    expected = (
        rf"'{field}' of sample chat\[0\]\[\d+\] is missing in sample web\[0\]\[\d+\], .*{why}.*"
        "return the same fields for every sample, or give the job collate="
    )
    with (
        es.start(job_of(chat, collate), backend="local") as service,
        pytest.raises(CollateError, match=expected),
    ):
        steps_of(service.client(0), 4)
    with es.start(job_of(chat, collate, web=chat), backend="local") as service:
        assert len(steps_of(service.client(0), 4)) == 4


def test_a_collate_function_may_join_them_in_a_way_of_its_own() -> None:
    job = job_of(with_score, packed_without_score)
    with es.start(job, backend="local") as service:
        assert all(
            "score" not in b for batches, _ in steps_of(service.client(0), 4) for b in batches
        )


def without_supervision(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**plain(row), "labels": [-100] * row["length"]}


def test_a_step_without_a_supervised_token_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_of(without_supervision, "pack", web=without_supervision)
    with es.start(job, backend="local") as service:
        taken = steps_of(service.client(0), 3)
    assert [step.loss_scales for _, step in taken] == [(0.0,)] * 3
    assert caplog.text.count("has no supervised token on any rank") == 1
    assert "step 0 has no supervised token" in caplog.text
