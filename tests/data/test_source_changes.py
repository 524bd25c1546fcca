"""Files that have changed are noticed: since a fingerprint was taken, by their content; while they
are read, by what the storage says of them."""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from source_checks import write_tar

from chaos_storage import ChaosFile
from evenstep.data import Source, open_reader
from evenstep.data.row_groups import RowSlice
from evenstep.data.source_files import list_files, with_first_openings
from evenstep.errors import StorageError

pytest.importorskip("webdataset")


def write(path: Path, table: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        stored = {"compression": "none", "use_dictionary": False, "row_group_size": 100}
        parquet.write_table(arrow.Table.from_pylist(table), path, **stored)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "memory"])
def test_other_data_of_the_same_size_is_told_and_a_copy_is_the_same(kind: str, tmp_path: Path):
    table = [{"id": k, "text": f"{k % 7:04}"} for k in range(500)]
    path = tmp_path / f"a.{'parquet' if kind == 'parquet' else 'jsonl'}"
    url = str(path)
    if kind == "memory":  # as an object store is read
        url = f"memory://{tmp_path}/a.jsonl"

    def fingerprint_of(rows: list[dict[str, Any]]) -> tuple[int, Any]:
        write(path, rows)
        if kind == "memory":
            with fsspec.open(url, "wb") as there:
                there.write(path.read_bytes())
        reader = open_reader(Source("web", url))
        return list_files(reader.source)[0].size, reader

    size, before = fingerprint_of(table)
    saved = before.fingerprint
    os.utime(path, (1, 1))
    assert open_reader(before.source).fingerprint == saved
    same_size, changed = fingerprint_of([*table[:250], {**table[250], "id": 251}, *table[251:]])
    assert same_size == size
    assert {**changed.fingerprint, "content": saved["content"]} == saved != changed.fingerprint


# While a source is read


KINDS, ROWS = ("parquet", "jsonl", "tar"), 300


def corpus(path: Path, letter: str, rows: int = ROWS) -> Path:
    """A file of rows of these letters; equally many rows of other letters take as many bytes."""
    table = [{"id": k, "text": letter * 500} for k in range(rows)]
    if path.suffix == ".tar":
        write_tar(path, [(f"{row['id']:04}.json", json.dumps(row).encode()) for row in table])
    else:
        write(path, table)
    return path


def text_of(sample: Any) -> str:
    return str(sample.get("json", sample)["text"])


def change(path: Path, new: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "replaced":
        os.replace(new, path)
    elif how == "written over":
        with open(path, "r+b") as file:
            file.write(new.read_bytes())
    elif how == "appended":
        with open(path, "ab") as file:
            file.write(new.read_bytes())
    elif how == "truncated":
        os.truncate(path, len(content) // 2)
    else:
        path.unlink()
        if how == "made again":
            path.write_bytes(content)


CHANGES = ("replaced", "written over", "appended", "truncated", "deleted", "made again")


@pytest.mark.parametrize(
    ("kind", "protocol", "how"),
    [
        (KINDS[(n + shift) % 3], protocol, how)
        for shift, protocol in enumerate(("", "chaos://"))
        for n, how in enumerate(CHANGES)
    ],
)
def test_a_file_that_changes_is_an_error_before_any_of_its_new_content(
    tmp_path: Path, kind: str, protocol: str, how: str
) -> None:
    path = corpus(tmp_path / f"old.{kind}", "x")
    new = corpus(tmp_path / f"new.{kind}", "z")
    assert new.stat().st_size == path.stat().st_size
    with open_reader(Source("s", f"{protocol}{path}", block=16, patience=600)) as reader:
        stream, seen = reader.read(), list[str]()
        seen += [text_of(next(stream).sample) for _ in range(ROWS // 3)]
        change(path, new, how)
        for rest in (stream, reader.read()):
            with pytest.raises(StorageError, match=r"has changed since|FileNotFound") as caught:
                seen += [text_of(item.sample) for item in itertools.islice(rest, 2 * ROWS)]
            assert str(path) in str(caught.value)
        assert {text[0] for text in seen} == {"x"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["", "chaos://"])
def test_a_file_that_changes_in_the_middle_of_a_read_is_an_error(
    tmp_path: Path, kind: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = corpus(tmp_path / f"old.{kind}", "x")
    new = corpus(tmp_path / f"new.{kind}", "z")

    def changing(real: Any) -> Any:
        def read(*given: Any, **options: Any) -> Any:
            found = real(*given, **options)
            if new.exists():
                os.replace(new, path)
            return found

        return read

    class Changing(io.FileIO):
        read = changing(io.FileIO.read)

    with open_reader(Source("s", f"{protocol}{path}", block=100)) as reader:
        monkeypatch.setattr("chaos_storage.ChaosFile.read", changing(ChaosFile.read))
        monkeypatch.setattr("evenstep.data.parquet.RowSlice", changing(RowSlice))
        opening = lambda path, *_, **__: Changing(path)  # noqa: E731
        monkeypatch.setattr("evenstep.data.storage.open", opening, raising=False)
        with pytest.raises(StorageError, match="has changed since it was opened"):
            next(reader.read())
        assert not new.exists()


# Between two openings of a job's source


@pytest.mark.parametrize("protocol", ["", "chaos://"])
def test_files_of_a_job_are_what_they_were_when_it_was_started(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter in "ab":
        corpus(tmp_path / f"{letter}.jsonl", letter, 20)
    given = Source("s", f"{protocol}{tmp_path}/*.jsonl")
    (source,) = with_first_openings([given])
    source = pickle.loads(pickle.dumps(source))
    open_reader(source)

    def refused(text: str) -> None:
        for opening in (open_reader, lambda source: with_first_openings([source])):
            with pytest.raises(StorageError, match=rf"since its job was started: {text}; restore"):
                opening(source)
        open_reader(given)  # which has no job

    more = corpus(tmp_path / "c.jsonl", "c", 20)
    refused("it is new")
    more.unlink()
    open_reader(source)
    (tmp_path / "b.jsonl").rename(tmp_path / "b")
    refused("it is gone")
    (tmp_path / "b").rename(tmp_path / "b.jsonl")
    open_reader(source)
    corpus(tmp_path / "b.jsonl", "d", 20)
    refused("its .* was .* and is .*")
    if not protocol:  # of a machine that has a copy, sizes are compared
        monkeypatch.setattr("socket.gethostname", lambda: "another")
        open_reader(source)
    corpus(tmp_path / "b.jsonl", "d", 21)
    refused("its size was .* and is .*")
