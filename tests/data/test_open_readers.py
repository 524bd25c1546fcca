"""Many sources opened at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from evenstep.data import Source, open_readers
from evenstep.errors import ConfigurationError

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

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


def test_sources_are_opened_at_once_and_come_in_order(store: Any) -> None:
    sources = [Source(f"s{k}", f"meeting://meeting/{k}.jsonl") for k in range(AT_ONCE)]
    sources.insert(1, Source("dataset", [{"a": 1}] * 5))
    readers = open_readers(sources, seed=3)
    assert [reader.source for reader in readers] == sources
    assert [reader.size for reader in readers] == [1, 5, 1, 1, 1]
    assert {reader.seed for reader in readers} == {3}


def test_files_of_a_source_are_opened_at_once(store: Any) -> None:
    (reader,) = open_readers([Source("s", "meeting://meeting/*.jsonl")])
    assert reader.size == AT_ONCE


def test_the_first_source_that_cannot_be_opened_is_named_and_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenstep.data.jsonl import JsonLinesReader

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
