"""Storage that does not answer is asked again; what it gave up is named; nothing is taken for the
end of the data that is none."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as arrow
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from source_checks import write_tar

from chaos_storage import ControlledStorage
from evenstep.data import BlockCache, Source, open_reader, open_readers
from evenstep.data.jsonl import JsonLinesReader
from evenstep.errors import ConfigurationError, SampleError, StorageError

pytest.importorskip("webdataset")


@pytest.fixture(autouse=True, scope="module")
def short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenstep.data.storage._FIRST_PAUSE", 0.0005)
        patch.setattr("evenstep.data.storage._LONGEST_PAUSE", 0.002)
        yield


@pytest.fixture(autouse=True, scope="module")
def without_index() -> Iterator[None]:
    """Every opening reads the files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenstep.data.file_index._worth_keeping", lambda files: False)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 90 rows in two files of each format."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [{"id": n, "text": f"row {n} " * (n % 30 + 1)} for n in range(90)]
    for number in range(2):
        half = rows[45 * number : 45 * number + 45]
        parquet.write_table(
            arrow.Table.from_pylist(half), folder / f"{number}.parquet", row_group_size=20
        )
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in half))
        members = [(f"{row['id']:04}.json", json.dumps(row).encode()) for row in half]
        write_tar(folder / f"{number}.tar", members)
    return folder


def far(corpus: Path, kind: str, **storage: Any) -> Source:
    patience, cache = storage.pop("patience", 20.0), storage.pop("cache", None)
    return Source(
        "far",
        f"chaos://{corpus}/*.{kind}",
        block=16,
        patience=patience,
        cache=cache,
        storage_options={key: str(v) if key == "control" else v for key, v in storage.items()},
    )


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "tar"])
def test_whatever_fails_the_same_samples_are_read(corpus: Path, kind: str, tmp_path: Path) -> None:
    near = Source("far", f"{corpus}/*.{kind}", block=16)
    with open_reader(near) as reader:
        expected = list(itertools.islice(reader.read(), 110))
        prints = reader.fingerprint

    @settings(max_examples=10, deadline=None)
    @given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.05, 0.3, 0.6]))
    def check(seed: int, rate: float) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if seed % 2:  # row groups are decoded several times, from a local copy
                from evenstep.data.row_groups import SizedCache

                patch.setattr("evenstep.data.parquet.DECODED", SizedCache(500))
            cache = BlockCache(tmp_path / str(seed), 1 << 20) if seed % 3 else None
            before = random.getstate()
            with open_reader(far(corpus, kind, seed=seed, rate=rate, cache=cache)) as reader:
                assert list(itertools.islice(reader.read(), 110)) == expected
                assert reader.fingerprint == prints
            assert random.getstate() == before

    check()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "tar"])
def test_an_outage_longer_than_its_patience_is_one_error_and_then_is_over(
    corpus: Path, kind: str, tmp_path: Path
) -> None:
    storage = ControlledStorage(tmp_path)
    source = far(corpus, kind, control=storage.path, patience=0.05)
    with open_reader(source) as reader:
        expected = [item.sample for item in itertools.islice(reader.read(), 90)]
        storage.fail()
        with pytest.raises(StorageError) as caught:
            list(itertools.islice(reader.read(), 90))
        text = str(caught.value)
        for part in (f"{corpus}/", f".{kind} cannot be read: tried ", " times in 0.", "far["):
            assert part in text
        assert "ConnectionError: " in text
        assert "patience=0.05" in text
        storage.stop()
        assert [item.sample for item in itertools.islice(reader.read(), 90)] == expected
        storage.fail()
        with pytest.raises(StorageError, match=r"source 'far': .*tried \d+ times"):
            _ = reader.fingerprint
    with pytest.raises(StorageError, match=r"source 'far': .*tried \d+ times"):
        open_reader(source)
    for calls in (("open", "read"), ("ls",)):
        storage.fail("down", *calls)
        with pytest.raises(StorageError, match=r"source 'far': .*tried \d+ times"):
            open_reader(source)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("parquet", errno.EIO),
        ("jsonl", errno.ESTALE),
        ("tar", errno.ESTALE),
        ("parquet", errno.ENOSPC),
        ("jsonl", errno.ENOSPC),
    ],
)
def test_a_stale_handle_of_a_network_file_system_is_tried_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
) -> None:
    with open_reader(Source("s", f"{corpus}/*.{kind}", block=16)) as reader:
        expected = list(itertools.islice(reader.read(), 90))
    calls = itertools.count()

    def failing(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            of_a_file = isinstance(arguments[0], (str, Path))
            if of_a_file and next(calls) % 3 < 2:
                raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        return call

    if kind == "parquet":
        monkeypatch.setattr(parquet, "ParquetFile", failing(parquet.ParquetFile))
    else:
        monkeypatch.setattr("evenstep.data.storage.open", failing(open), raising=False)
    if code == errno.ENOSPC:
        with pytest.raises((SampleError, ValueError), match="No space left"):
            open_reader(Source("s", f"{corpus}/*.{kind}", block=16))
        assert next(calls) <= 3  # files are opened at the same time
    else:
        with open_reader(Source("s", f"{corpus}/*.{kind}", block=16)) as reader:
            assert list(itertools.islice(reader.read(), 90)) == expected


# Many sources opened at once


AT_ONCE = 4


class Meeting(MemoryFileSystem):  # type: ignore[misc]
    """A store in which a file opens once others are being opened as well."""

    protocol = "meeting"
    cachable = False
    barrier = threading.Barrier(AT_ONCE)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("meeting://", "memory://"))

    def _open(self, *args: Any, **options: Any) -> Any:
        self.barrier.wait(timeout=30)
        return super()._open(*args, **options)


@pytest.fixture
def store() -> Any:
    fsspec.register_implementation("meeting", Meeting, clobber=True)
    memory = fsspec.filesystem("memory")
    for k in range(AT_ONCE):
        memory.pipe(f"/meeting/{k}.jsonl", b'{"a": %d}\n' % k)
    return memory


def test_the_first_source_that_cannot_be_opened_is_named_and_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    closed: list[str] = []
    real = JsonLinesReader._set_order

    def noted(self: JsonLinesReader, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        opened.append(self.source.name)

    monkeypatch.setattr(JsonLinesReader, "_set_order", noted)
    monkeypatch.setattr(JsonLinesReader, "close", lambda self: closed.append(self.source.name))
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    good = [Source(f"good {k}", str(tmp_path / "a.jsonl")) for k in range(3)]
    missing = [Source(f"missing {k}", str(tmp_path / f"{k}.jsonl")) for k in range(3)]
    with pytest.raises(ConfigurationError, match="'missing 0': there is no file"):
        open_readers([good[0], missing[0], good[1], missing[1], good[2], missing[2]])
    assert "good 0" in opened
    assert sorted(closed) == sorted(opened)
