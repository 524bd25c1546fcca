"""A state is resumed over the same samples only, and so is a loader that has died; what is refused
says which source changed how."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import stop, until
from service_world import (
    in_one_process,
    job_of,
    rows,
    sources,
    steps_of,
    tokens_of_row,
    write_jsonl,
)

import evenstep.service as es
from evenstep.errors import MismatchError, StorageError


def edited() -> Any:
    """`tokens_of_row` as it is after an edit: of the same name."""

    def tokens_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
        return {"input_ids": [row["id"] + 1] * row["length"], "id": row["id"]}

    tokens_of_row.__qualname__ = "tokens_of_row"
    tokens_of_row.__module__ = "service_world"
    return tokens_of_row


@pytest.fixture
def saved(tmp_path: Path) -> Mapping[str, Any]:
    """A state after two steps, as a checkpoint holds it."""
    given = sources(tmp_path, transform=tokens_of_row)
    with es.start(job_of(tmp_path, sources=given), backend="local") as service:
        steps_of(service.client(0), 2)
        return json.loads(json.dumps(service.state_dict(2)))


def resume(folder: Path, state: Mapping[str, Any], **changes: Any) -> Any:
    """The next steps, where options of the source "web" have changed."""
    given = sources(folder, transform=tokens_of_row)
    web = {"transform": tokens_of_row, "weight": 0.3, "block": 8, **changes}
    given[1] = es.Source("web", given[1].data, **web)
    return in_one_process(job_of(folder, sources=given), 2, ranks=[0], state=state)[0]


def test_other_rows_of_the_same_size_are_refused(tmp_path: Path, saved: Any) -> None:
    path = tmp_path / "b.jsonl"
    before = path.read_bytes()
    table = rows(45, 2000, 60)
    write_jsonl(path, [*table[:30], {**table[30], "id": 9999}, *table[31:]])
    assert len(path.read_bytes()) == len(before)
    changed = path.read_bytes()
    given = sources(tmp_path, transform=tokens_of_row)
    path.write_bytes(changed)
    with (
        pytest.raises(MismatchError, match=r"source 'web' has changed.*: the content of its files"),
        es.start(job_of(tmp_path, sources=given), backend="local", state=saved),
    ):
        pass
    path.write_bytes(before)
    assert [step[0] for step in resume(tmp_path, saved)] == [2, 3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"transform": edited()}, "its transform was service_world.tokens_of_row:.* and is now"),
        ({"columns": ["id", "length"]}, "its columns"),
        ({"shuffle": False}, "its order"),
        ({"block": 9}, "its files"),
    ],
)
def test_what_has_changed_is_named(
    changes: dict[str, Any], says: str, tmp_path: Path, saved: Any
) -> None:
    with pytest.raises(MismatchError, match=f"source 'web' has changed.*: {says}"):
        resume(tmp_path, saved, **changes)


def test_a_state_of_another_seed_or_version_is_refused(tmp_path: Path, saved: Any) -> None:
    with pytest.raises(MismatchError, match="version=7"):
        resume(tmp_path, {**saved, "version": 7})
    with pytest.raises(MismatchError, match=r"version=5.*version=7.*evenstep that wrote"):
        es.start(job_of(tmp_path), backend="processes", state={"version": 7, "of": "service"})
    job = job_of(tmp_path, sources=sources(tmp_path, transform=tokens_of_row), seed=9)
    with pytest.raises(MismatchError, match="seed"):
        es.start(job, backend="local", state=saved)


def test_an_edit_that_changes_no_sample_may_be_vouched_for(tmp_path: Path, saved: Any) -> None:
    expected = resume(tmp_path, saved)
    harmless = edited()
    with pytest.raises(MismatchError, match=r"set its attribute fingerprint = '(.*)'") as refused:
        resume(tmp_path, saved, transform=harmless)
    harmless.fingerprint = str(refused.value).partition("fingerprint = '")[2].partition("'")[0]
    again = resume(tmp_path, saved, transform=harmless)
    assert [step[3] for step in again] == [step[3] for step in expected]


def replace_web(folder: Path) -> None:
    """Other rows of the same lengths, in as many bytes."""
    path = folder / "b.jsonl"
    before = path.stat().st_size
    write_jsonl(folder / "new", [{**row, "id": row["id"] + 5000} for row in rows(45, 2000, 60)])
    os.replace(folder / "new", path)
    assert path.stat().st_size == before


def test_a_loader_that_follows_one_that_died_does_not_read_a_file_that_was_replaced(
    tmp_path: Path,
) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    job = job_of(tmp_path, sources=sources(tmp_path, transform=tokens_of_row))
    name, faults = f"replaced-{os.getpid()}", es.ServiceFaults(standbys=1)
    with es.start(job, backend="processes", name=name, faults=faults) as service:
        ready = lambda: [s for s in service.status()["standbys"] if s["ready"]]  # noqa: E731
        until(lambda: len(ready()) == 1, "a standby that is ready")
        client = service.client(0)
        taken = steps_of(client, 1)
        loader = service.status()["loaders"][0]["process"]["process"]
        stop(loader)  # or it may notice by itself
        replace_web(tmp_path)
        os.kill(loader, signal.SIGKILL)
        with pytest.raises(StorageError, match=r"b\.jsonl has changed since it"):
            taken.extend(client)
    ids = [n for batches, _ in taken for batch in batches for n in batch["id"].tolist()]
    assert max(ids) < 5000
    write_jsonl(tmp_path / "b.jsonl", rows(45, 2000, 60))
    assert len(in_one_process(job, 1)[0]) == 1  # started again
