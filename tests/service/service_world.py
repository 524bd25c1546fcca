"""Jobs over small files, for the tests of the service. Actors that import it need no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

KEY, SECRET = "AKIAEVENSTEPTESTKEY", "wJalr-a-secret-that-nobody-may-see"
"""Of the tests' object store."""
Batches = list[tuple[list[Any], es.ServiceStep]]


def tokens_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose first token identifies the stored row."""
    length = row["length"]
    return {"input_ids": [row["id"], *range(1, length)], "id": row["id"]}


def with_prompt(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose first third is not supervised."""
    sample = tokens_of_row(row)
    prompt = len(sample["input_ids"]) // 3
    sample["labels"] = [-100] * prompt + sample["input_ids"][prompt:]
    return sample


def failing(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["id"] % 1000 == 17:
        raise ValueError("a bad row")
    return tokens_of_row(row)


def rows(count: int, first: int, longest: int) -> list[dict[str, int]]:
    rng = np.random.default_rng(first)
    lengths = np.clip(rng.lognormal(2.5, 0.8, count).astype(int), 2, longest)
    return [{"id": first + k, "length": int(n)} for k, n in enumerate(lengths)]


def write_parquet(path: Path, table: Sequence[Mapping[str, Any]], group: int = 16) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(table)), path, row_group_size=group)
    return path


def write_jsonl(path: Path, table: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


class Rows:
    """A map-style dataset."""

    def __init__(self, table: Sequence[Mapping[str, Any]]) -> None:
        self.table = list(table)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.table[index]


def sources(
    folder: Path, *, counts: Sequence[int] = (60, 45, 50), longest: int = 60, transform: Any = None
) -> list[es.Source]:
    """Parquet, JSONL and Parquet in two files, of different weights."""
    transform = transform or with_prompt
    a, b, c = (rows(n, 1000 * (k + 1), longest) for k, n in enumerate(counts))
    parquet = write_parquet(folder / "a.parquet", a)
    jsonl = write_jsonl(folder / "b.jsonl", b)
    for number, half in enumerate((c[: len(c) // 3], c[len(c) // 3 :])):
        write_parquet(folder / "books" / f"{number}.parquet", half, group=8)
    return [
        es.Source("code", str(parquet), transform=transform, weight=0.5),
        es.Source("web", str(jsonl), transform=transform, weight=0.3, block=8),
        es.Source("books", str(folder / "books" / "*.parquet"), transform=transform, weight=0.2),
    ]


def balanced(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").cost(squares).balance("karmarkar_karp").plan()


def broadcast_at_tp(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").broadcast_at("TP").plan()


def squares(lengths: Any) -> Any:
    return lengths * lengths


def job_of(folder: Path, **options: Any) -> es.Job:
    given = {
        "sources": None,
        "mesh": es.Mesh(DP=2),
        "strategy": balanced,
        "micro_batches": 2,
        "max_tokens": 128,
        "samples_per_step": 16,
        "seed": 3,
        **options,
    }
    if given["sources"] is None:
        given["sources"] = sources(folder)
    return new_job(**given)


def new_job(**options: Any) -> es.Job:
    """A `Job` of options that are not in their groups."""
    kinds = {"draws": es.DrawOptions, "measures": es.MeasureOptions, "memory": es.ServiceMemory}
    for group, kind in kinds.items():
        own = {each.name for each in fields(kind)} & options.keys()
        if own:
            options[group] = kind(**{name: options.pop(name) for name in own})
    return es.Job(**options)


def striped(job: es.Job, loaders: int, stripe: int) -> es.SourceLayout:
    """Loaders that share sources in stripes of so many positions."""
    return es.SourceLayout.of(job.names, loaders, stripe=stripe)


def steps_of(client: es.RankClient, count: int | None = None) -> Batches:
    """The next steps of a client; all of them if no number is given."""
    taken: Batches = []
    while count is None or len(taken) < count:
        try:
            taken.append(next(client))
        except StopIteration:
            break
    return taken


def in_one_process(
    job: es.Job, count: int | None = None, ranks: Sequence[int] | None = None, **options: Any
) -> list[Any]:
    """[ranks] the steps of each, as `comparable` gives them, of a service that nothing disturbs."""
    with es.start(job, backend="local", **options) as service:
        clients = map(service.client, range(len(job.tree)) if ranks is None else ranks)
        return [comparable(steps_of(client, count)) for client in clients]


def comparable(taken: Batches) -> list[Any]:
    """All that can be compared of steps: numbers, names and tensors as lists."""
    return [
        (
            step.step,
            step.rank,
            step.loss_scales,
            step.sample_ids,
            step.imbalance,
            step.imbalance_before,
            dict(step.weights),
            [plain(batch) for batch in batches],
        )
        for batches, step in taken
    ]


def plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(field) for name, field in value.items() if name != "sharding"}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value
