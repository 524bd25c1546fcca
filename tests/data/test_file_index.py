"""Indexes of large files: kept, of one version, made again where they are not right."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from source_checks import take, write_tar

from evenstep.data import Source, file_index, open_reader
from evenstep.data.storage import StorageFile
from evenstep.errors import ConfigurationError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_index, "_LEAST", 1000)
    monkeypatch.setenv(file_index.FOLDER_VARIABLE, str(tmp_path / "indexes"))
    return tmp_path / "indexes"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of a file."""
    found: list[int] = []
    original = StorageFile.readinto

    def readinto(file, buffer):
        found.append(original(file, buffer))
        return found[-1]

    monkeypatch.setattr(StorageFile, "readinto", readinto)
    return found


def lines(count: int, first: int = 0) -> str:
    return "".join(json.dumps({"n": first + n, "text": "x" * 50}) + "\n" for n in range(count))


def numbers(source: Source) -> list[int]:
    with open_reader(source) as reader:
        return [item.sample["n"] for item in reader.read(passes=1)]


def test_a_file_is_read_once_to_open_it_and_again_after_it_has_changed(tmp_path, folder, read):
    path = tmp_path / "a.jsonl"
    path.write_text(lines(300))
    source = Source("s", str(path), shuffle=False, block=7)
    open_reader(source)
    assert sum(read) == path.stat().st_size
    read.clear()
    with open_reader(source) as reader:
        assert read == []
        assert reader.size == 300
    assert numbers(source) == list(range(300))
    (index,) = folder.iterdir()
    path.write_text(lines(301, 5))
    assert numbers(source) == list(range(5, 306))
    read.clear()
    other = Source("s", str(path), shuffle=False, block=8)
    assert numbers(other) == list(range(5, 306))  # with blocks of another size
    assert len(list(folder.iterdir())) == 3
    assert index.exists()
    write_tar(tmp_path / "0.tar", [(f"{n}.cls", b"%d" % n) for n in range(100)])
    tar = Source("s", str(tmp_path / "0.tar"), shuffle=False)
    open_reader(tar)
    read.clear()
    with open_reader(tar) as reader:
        assert read == []
        assert [item.sample["cls"] for item in take(reader, 3, 50)] == [50, 51, 52]

    (tmp_path / "empty.jsonl").write_text("\n" * 2000)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no samples"):
            open_reader(Source("s", str(tmp_path / "empty.jsonl")))


def test_a_sample_of_a_tar_file_is_read_by_itself(tmp_path, read):
    write_tar(tmp_path / "0.tar", [(f"{k:04}.bin", bytes([k % 251]) * 100_000) for k in range(40)])
    with open_reader(Source("s", str(tmp_path / "0.tar"), shuffle=False)) as reader:
        assert 0 < sum(read) < 40 * 100_000  # headers, and what comes with them
        read.clear()
        (item,) = take(reader, 1, 30)
        assert item.sample["bin"] == bytes([30]) * 100_000
        assert sum(read) < 2 * 100_000


@pytest.mark.parametrize("damage", [b"", b"1234", b"123456789", None])
def test_a_damaged_index_is_made_again(tmp_path, folder, damage):
    path = tmp_path / "a.jsonl"
    path.write_text(lines(300))
    source = Source("s", str(path), shuffle=False, block=7)
    open_reader(source)
    (index,) = folder.iterdir()
    whole = index.read_bytes()
    index.write_bytes(whole[:-9] + b"\x01" + whole[-8:] if damage is None else damage)
    assert numbers(source) == list(range(300))
    assert index.read_bytes() == whole


def test_an_index_that_cannot_be_kept_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv(file_index.FOLDER_VARIABLE, str(tmp_path / "file"))
    path = tmp_path / "a.jsonl"
    path.write_text(lines(300))
    with caplog.at_level(logging.WARNING, "evenstep"):
        assert numbers(Source("s", str(path), shuffle=False)) == list(range(300))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "set EVENSTEP_INDEX to a folder that can be written" in said
