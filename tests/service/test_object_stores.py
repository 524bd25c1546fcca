"""Sources in object stores: the same samples as from files, by credentials that nothing shows."""

from __future__ import annotations

import io
import json
import logging
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from service_world import (
    KEY,
    SECRET,
    comparable,
    in_one_process,
    job_of,
    rows,
    steps_of,
    striped,
    tokens_of_row,
    write_jsonl,
    write_parquet,
)

pytest.importorskip("zmq", reason="pyzmq is not installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, SampleError, StorageError
from evenstep.strategy import to_json

COUNTS = (60, 45, 50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet, JSON Lines and tar files."""
    folder = tmp_path_factory.mktemp("corpus")
    code, web, shown = (rows(n, 1000 * (k + 1), 60) for k, n in enumerate(COUNTS))
    write_parquet(folder / "code" / "0.parquet", code[:25])
    write_parquet(folder / "code" / "1.parquet", code[25:])
    write_jsonl(folder / "web.jsonl", web)
    (folder / "shown").mkdir()
    for number, part in enumerate((shown[:20], shown[20:])):
        with tarfile.open(folder / "shown" / f"{number}.tar", "w") as tar:
            for row in part:
                content = json.dumps(row).encode()
                info = tarfile.TarInfo(f"{row['id']}.json")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return folder


@pytest.fixture
def bucket(s3: Any, folder: Path) -> str:
    """A URL below which the files lie."""
    for path in folder.rglob("*.*"):
        s3.put(str(path), f"corpus/{path.relative_to(folder)}")
    return "s3://corpus"


def tokens_of_json(sample: Mapping[str, Any]) -> dict[str, Any]:
    return tokens_of_row(sample["json"])


def sources_in(place: str, **options: Any) -> list[es.Source]:
    def source(name: str, path: str, transform: Any = tokens_of_row) -> es.Source:
        return es.Source(name, f"{place}/{path}", transform=transform, block=8, **options)

    tar = source("shown", "shown/*.tar", tokens_of_json)
    return [source("code", "code/*.parquet"), source("web", "web.jsonl"), tar]


def job_in(place: str, **options: Any) -> es.Job:
    stop = "all_exhausted"
    return job_of(Path(), sources=sources_in(place, **options), stop=stop)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    """[ranks] all steps, from files."""
    return in_one_process(job_in(str(folder)))


def samples_of(batch: Mapping[str, Any]) -> Iterator[list[int]]:
    """The tokens of each sample of a packed batch."""
    tokens, bounds = batch["input_ids"][0], batch["cu_seqlens"]
    return (tokens[begin:end] for begin, end in pairwise(bounds))


@pytest.mark.parametrize(
    ("backend", "given"),
    [("local", "options"), pytest.param("processes", "environment", marks=pytest.mark.slow)],
)
def test_samples_in_s3_are_those_of_files_and_credentials_are_nowhere(
    backend: str,
    given: str,
    bucket: str,
    expected: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG, "evenstep")
    options: dict[str, Any] = {}
    if given == "options":
        options["storage_options"] = {"key": KEY, "secret": SECRET}
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    job = job_in(bucket, **options)
    more: dict[str, Any] = {} if backend == "local" else {"name": "s3"}
    with es.start(job, backend=backend, **more) as service:
        taken = [comparable(steps_of(service.client(rank))) for rank in range(2)]
        plan = service.plan(0)
        assert plan is not None
        shown = [repr(service), repr(service.status()), json.dumps(service.state_dict())]
    assert taken == expected
    samples = [
        sample
        for steps in taken
        for step in steps
        for batch in step[-1]
        for sample in samples_of(batch)
    ]
    stored = [row for k, n in enumerate(COUNTS) for row in rows(n, 1000 * (k + 1), 60)]
    whole = {row["id"]: [row["id"], *range(1, row["length"])] for row in stored}
    assert len({sample[0] for sample in samples}) == len(samples) >= len(stored) - 1
    assert all(sample == whole[sample[0]] for sample in samples)
    captured = capfd.readouterr()
    shown += [repr(job), repr(job.sources), repr(job.for_loader(["code"]))]
    shown += [caplog.text, captured.out, captured.err, to_json(plan)]
    assert not any(hidden in text for hidden in (KEY, SECRET) for text in shown)
    if given == "environment":  # then it is not even sent
        assert SECRET.encode() not in pickle.dumps(job.for_loader(["code"]))


def test_loaders_of_a_host_and_later_runs_fetch_each_byte_once(
    bucket: str, folder: Path, expected: list[Any], tmp_path: Path
) -> None:
    job = job_in(bucket, cache=es.BlockCache(tmp_path))
    whole = sum(path.stat().st_size for path in folder.rglob("*.*"))
    counts = []
    for _ in range(2):
        with es.start(job, backend="local", loaders=striped(job, 3, 6)) as service:
            assert comparable(steps_of(service.client(0))) == expected[0]
            said = [loader["cache"] for loader in service.status()["loaders"]]
        counts.append({name: sum(each[name] for each in said) for name in said[0]})
    first, second = counts
    assert (first["misses"], first["fetched_bytes"]) == (5, whole)  # a block for each file
    assert second["misses"] == second["fetched_bytes"] == first["evicted_bytes"] == 0
    assert second["hits"] >= 5
    assert second["served_bytes"] >= whole


def test_errors_of_a_store_have_no_credentials(bucket: str) -> None:
    import s3fs

    secret = {"key": KEY, "secret": SECRET}
    with es.start(job_in(bucket, storage_options=secret), backend="local") as service:
        s3fs.S3FileSystem(skip_instance_cache=True).rm("corpus/web.jsonl")
        with pytest.raises(SampleError, match=r"corpus/web\.jsonl") as error:
            steps_of(service.client(0))
    assert SECRET not in str(error.value)
    nobody = {**secret, "endpoint_url": "http://127.0.0.1:1"}
    nobody["config_kwargs"] = {"retries": {"max_attempts": 1}}
    for place, options in (("s3://absent", secret), (f"{bucket}/absent", secret), (bucket, nobody)):
        raised = StorageError if options is nobody else ConfigurationError
        with pytest.raises(raised, match="source 'code'") as refused:
            job_in(place, storage_options=options, patience=0.1)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "guarded"),
    [
        ("code/0.parquet", True),
        pytest.param("web.jsonl", False, marks=pytest.mark.slow),
        pytest.param("shown/1.tar", False, marks=pytest.mark.slow),
    ],
)
def test_an_object_that_is_replaced_is_an_error_before_any_of_its_new_content(
    name: str, guarded: bool, bucket: str, folder: Path, tmp_path: Path
) -> None:
    """With s3fs's own guard of each request, and without."""
    import s3fs

    options = {"listings_expiry_time": None} if guarded else {"local_expiry_check": True}
    content = (folder / name).read_bytes()
    if name.endswith("parquet"):
        new = write_parquet(tmp_path / "new", rows(COUNTS[0], 7000, 60)).read_bytes()
    else:
        new = content.replace(b'"id": 2', b'"id": 7').replace(b'"id": 3', b'"id": 7')
        assert new != content
        assert len(new) == len(content)
    job = job_in(bucket, storage_options=options)
    with es.start(job, backend="local") as service:
        client = service.client(0)
        taken = steps_of(client, 1)
        s3fs.S3FileSystem(skip_instance_cache=True).pipe(f"corpus/{name}", new)
        with pytest.raises(StorageError, match=f"corpus/{name} has changed since it was opened"):
            taken.extend(client)
    ids = [n for batches, _ in taken for batch in batches for n in batch["id"].tolist()]
    assert all(1000 <= n < 4000 for n in ids)
