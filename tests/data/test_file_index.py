"""What opening files finds out: kept, of one version, made again where it is not right."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from source_checks import take, write_tar

import chaos_storage
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


def packs(folder: Path) -> list[Path]:
    assert not list(folder.rglob("*partial*"))
    return list(folder.rglob("*.npz"))


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
    (index,) = packs(folder)
    path.write_text(lines(301, 5))
    assert numbers(source) == list(range(5, 306))
    read.clear()
    other = Source("s", str(path), shuffle=False, block=8)
    assert numbers(other) == list(range(5, 306))  # with blocks of another size
    assert len(packs(folder)) == 3
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
def test_a_damaged_index_is_made_again(tmp_path, folder, read, damage):
    path = tmp_path / "a.jsonl"
    path.write_text(lines(300))
    source = Source("s", str(path), shuffle=False, block=7)
    open_reader(source)
    (index,) = packs(folder)
    whole = index.read_bytes()
    at = len(whole) // 2
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    index.write_bytes(flipped if damage is None else damage)
    assert numbers(source) == list(range(300))
    read.clear()
    with open_reader(source) as reader:
        assert reader.size == 300
    assert read == []


def write(path: Path, first: int) -> None:
    """A file of 50 samples, of the kind that its name says."""
    if path.suffix == ".parquet":
        numbers = {"n": list(range(first, first + 50)), "text": ["x" * 50] * 50}
        pyarrow.parquet.write_table(pyarrow.table(numbers), path, row_group_size=20)
    elif path.suffix == ".jsonl":
        path.write_text(lines(50, first))
    else:
        write_tar(path, [(f"{first + n}.cls", b"%d" % (first + n)) for n in range(50)])


@pytest.fixture
def far_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of each read of a file of `chaos_storage`."""
    found: list[str] = []
    original = chaos_storage.ChaosFile.read
    monkeypatch.setattr(
        chaos_storage.ChaosFile,
        "read",
        lambda file, size=-1: (found.append(file._file.name), original(file, size))[1],
    )
    return found


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "tar"])
@pytest.mark.parametrize("place", ["folder", "memory://index"])
def test_an_opened_file_is_not_read_by_the_next_start(
    kind, place, tmp_path, monkeypatch, folder, far_reads
):
    """Also not for the digest of its content, and where the index is in an object store."""
    monkeypatch.setenv(file_index.FOLDER_VARIABLE, str(folder) if place == "folder" else place)
    (tmp_path / "data").mkdir()
    for part in range(3):
        write(tmp_path / "data" / f"{part}.{kind}", 50 * part)

    def opened() -> tuple[Any, ...]:
        source = Source("s", f"chaos://{tmp_path}/data/*.{kind}", columns=[field], block=20)
        with open_reader(source) as reader:
            fingerprint, read = reader.fingerprint, set(far_reads)
            order = [reader.order(n) for n in range(150)]
            found = [item.sample[field] for item in reader.read(passes=1)]
        far_reads.clear()
        return fingerprint, order, found, {Path(path).stem for path in read}

    field = "cls" if kind == "tar" else "n"
    with file_index.watched() as counts:
        *first, read = opened()
    assert sorted(first[-1]) == list(range(150))
    assert read == {"0", "1", "2"}
    assert (counts.files, counts.kept, counts.made) == (3, 0, 3)
    with file_index.watched() as counts:
        *second, read = opened()
    assert second == first
    assert read == set()
    assert (counts.files, counts.kept, counts.made) == (3, 3, 0)
    write(tmp_path / "data" / f"1.{kind}", 1000)
    with file_index.watched() as counts:
        *changed, read = opened()
    assert sorted(changed[-1]) == [*range(50), *range(100, 150), *range(1000, 1050)]
    assert changed[0] != first[0]
    assert (counts.kept, counts.made) == (2, 1)


def add(number: int) -> None:
    packs = file_index._Packs("numbers", "folder")
    packs.add({f"{number:032}": b"%d" % number})


def test_many_writers_lose_nothing_and_leave_few_packs(folder):
    """Processes and threads, as of several hosts that share a folder."""
    with ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as pool:
        list(pool.map(add, range(25)))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(25, 50)))
    add(50)
    found = file_index._Packs("numbers", "folder").read()
    assert found == {f"{n:032}": b"%d" % n for n in range(51)}
    assert len(packs(folder)) < 2 * file_index._MANY
