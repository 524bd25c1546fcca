"""WebDataset: samples as the library makes them, in the order of shards."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_checks import check_order_and_seeking, take, write_tar

from evenstep.data import Source, open_reader
from evenstep.errors import ConfigurationError, SampleError

webdataset = pytest.importorskip("webdataset")


@pytest.fixture
def shards(tmp_path: Path) -> str:
    for shard, count in enumerate((5, 1, 9)):
        files: list[tuple[str, bytes]] = [("__meta__/info.json", b"{}"), ("README", b"no suffix")]
        for i in range(count):
            files += [
                (f"x/{shard}-{i}.txt", f"text {shard} {i}".encode()),
                (f"x/{shard}-{i}.meta.json", b'{"n": %d}' % i),
                (f"x/{shard}-{i}.bin", bytes([i])),
            ]
        write_tar(tmp_path / f"{shard}.tar", files)
    return str(tmp_path / "*.tar")


def test_order_and_seeking(shards):
    first = check_order_and_seeking(lambda: Source("s", shards), 15)
    assert sorted((i.shard, i.index) for i in first) == [
        (shard, i) for shard, count in enumerate((5, 1, 9)) for i in range(count)
    ]
    for item in first:
        assert item.sample["txt"] == f"text {item.shard} {item.index}"
        assert item.sample["meta.json"] == {"n": item.index}
        assert item.sample["bin"] == bytes([item.index])


class Program:
    """Runs where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_are_not_loaded(tmp_path):
    content = pickle.dumps(Program(tmp_path / "ran"))
    suffixes = ["pkl", "pickle", "pyd", "pth", "a.pyd"]
    packed = [("x/0.b.pkl.gz", gzip.compress(content)), ("x/0.npy", _object_array(tmp_path))]
    write_tar(tmp_path / "0.tar", [*((f"x/0.{each}", content) for each in suffixes), *packed[:1]])
    with open_reader(Source("s", str(tmp_path / "0.tar"))) as reader:
        sample = take(reader, 1)[0].sample
    assert {name: sample[name] for name in ("pkl", "pyd", "pth", "a.pyd", "b.pkl.gz")} == (
        dict.fromkeys(("pkl", "pyd", "pth", "a.pyd", "b.pkl.gz"), content)
    )
    write_tar(tmp_path / "1.tar", packed[1:])
    with (
        open_reader(Source("s", str(tmp_path / "1.tar"))) as reader,
        pytest.raises(SampleError, match="cannot be read"),
    ):
        take(reader, 1)
    assert not (tmp_path / "ran").exists()


def _object_array(folder: Path) -> bytes:
    file = io.BytesIO()
    array = np.array([Program(folder / "ran")], object)
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_wrong_shards_are_named(shards, tmp_path):
    with pytest.raises(
        SampleError, match=r"sample s\[0\]\[0\] \(.*0.tar\).*no file with suffix 'jpg'"
    ):
        take(open_reader(Source("s", shards, columns=["jpg"], shuffle=False)), 1)
    write_tar(tmp_path / "9.tar", [("a.json", b"{"), ("b.json", b"{}")])
    with open_reader(Source("s", str(tmp_path / "9.tar"))) as reader:
        with pytest.raises(SampleError, match=r"sample s\[0\]\[0\] \(.*9.tar\) cannot be read"):
            take(reader, 1)
        assert take(reader, 1, 1)[0].sample["json"] == {}
    (tmp_path / "8.tar").write_bytes(b"this is not a tar file" * 100)
    with pytest.raises(ConfigurationError, match=r"8.tar cannot be read as a tar file"):
        open_reader(Source("s", shards))


names = st.sampled_from(
    ["a.txt", "a.dat", "b.txt", "c/a.txt", "__m__/x.txt", "__x__", "none", "b.x.bin"]
)


@given(st.lists(st.tuples(names, st.integers(0, 1500), st.booleans()), max_size=12))
def test_samples_are_those_of_the_library_wherever_they_lie(files):
    """With pax headers, folders between files, names that count for nothing, and contents of all
    sizes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0.tar")
        seen: set[str] = set()
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for number, (name, size, long) in enumerate(files):
                if number and name in seen:
                    name = f"d{number}/{name}"
                seen.add(name)
                info = tarfile.TarInfo(name if not long else f"{'long/' * 60}{name}")
                info.size = size
                tar.addfile(info, io.BytesIO(bytes([number]) * size))
                folder_info = tarfile.TarInfo(f"between{number}")
                folder_info.type = tarfile.DIRTYPE
                tar.addfile(folder_info)
        with path.open("rb") as opened:
            members = list(webdataset.tariterators.tar_file_iterator(opened))
        named = ({**member, "__url__": str(path)} for member in members)
        wanted = list(webdataset.tariterators.group_by_keys(named))
        source = Source("s", str(path), shuffle=False, columns=None)
        if not wanted:
            with pytest.raises(ConfigurationError, match="no samples"):
                open_reader(source)
            return
        with open_reader(source) as reader:
            assert reader.random_access
            assert reader.size == len(wanted)
            for number, sample in enumerate(wanted):
                (item,) = take(reader, 1, number)
                raw = {k: v for k, v in item.sample.items() if k.startswith("__") or "bin" in k}
                assert raw == {k: sample[k] for k in raw}
                assert item.sample.keys() == sample.keys()
