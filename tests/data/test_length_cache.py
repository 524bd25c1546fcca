"""Counted lengths are those of the dataset, and a file of them is refused once they may not be."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as parquet

from documents import Documents
from evenstep.data import count_lengths, read_lengths, write_lengths
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.plan import Lengths
from evenstep.tools.simulate import load_lengths


class Cut(Documents):
    """Documents cut off at some length."""

    def __init__(self, count: int, cut: int) -> None:
        super().__init__(count)
        self.cut = cut

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: value[: self.cut] for name, value in self.whole(index).items()}

    def whole(self, index: int) -> dict[str, Any]:
        return {"input_ids": super().__getitem__(index)["input_ids"]}


def labels_alone(sample: dict[str, Any]) -> int:
    return int((sample["labels"] != -100).sum())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.parquet"
    dataset = Cut(100, 64)
    write_lengths(path, count_lengths(dataset), dataset, transform="cut at 64")
    return path


def test_a_file_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = Documents(9)
    write_lengths("a.parquet:length", count_lengths(dataset), dataset)
    assert len(read_lengths("a.parquet:length", dataset)) == 9


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sample_is_counted_in_dataset_order(num_workers: int) -> None:
    seen = []
    counted = count_lengths(
        Documents(200), num_workers=num_workers, progress=lambda *done: seen.append(done)
    )
    assert np.array_equal(counted.values, Documents(200).lengths)
    assert seen[-1] == (200, 200)
    assert sorted(seen) == seen


def test_a_length_function_decides_what_is_counted() -> None:
    dataset = Documents(30, prompts=True)
    counted = count_lengths(dataset, length_fn=labels_alone)
    assert counted.values.tolist() == [labels_alone(dataset[i]) for i in range(30)]


class Broken(Documents):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 41:
            raise OSError("unreadable")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_cannot_be_had_is_an_error_that_names_it(num_workers: int) -> None:
    with pytest.raises(SampleError, match=r"^sample 41: the dataset raised OSError: unreadable"):
        count_lengths(Broken(60), num_workers=num_workers)
    with pytest.raises(SampleError, match=r"^sample 0: .*pass length_fn="):
        count_lengths(["text"], num_workers=num_workers)


def test_a_dataset_that_is_empty_or_has_no_indices_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        count_lengths(Documents(0))
    with pytest.raises(ConfigurationError, match="generator lacks __len__ or"):
        count_lengths(i for i in range(3))


def test_what_was_written_is_read(cache: Path) -> None:
    lengths = read_lengths(cache, Cut(100, 64), transform="cut at 64")
    assert lengths == count_lengths(Cut(100, 64))
    assert np.array_equal(load_lengths(f"{cache}:length"), lengths.values)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]


@pytest.mark.parametrize(
    ("dataset", "transform", "says"),
    [
        (Cut(101, 64), "cut at 64", "counted with dataset .*'size': 100.*'size': 101"),
        (Documents(100), "cut at 64", "counted with dataset .*'Cut'.*'Documents'"),
        (Cut(100, 64), "cut at 32", "counted with transform 'cut at 64', and this is 'cut at 32'"),
        (Cut(100, 32), "cut at 64", "sample .* has 32 tokens now and had"),
    ],
)
def test_a_stale_file_is_refused_with_what_has_changed(
    cache: Path, dataset: Any, transform: str, says: str
) -> None:
    with pytest.raises(MismatchError, match=f"(?s)is stale: .*{says}"):
        read_lengths(cache, dataset, transform=transform)


class Counting:
    def __call__(self, sample: dict[str, Any]) -> int:
        return len(sample["input_ids"])


@pytest.mark.parametrize("make", [Counting, lambda: functools.partial(labels_alone)])
def test_a_length_function_is_known_again_though_it_has_no_name(make: Any, tmp_path: Path) -> None:
    dataset, path = Documents(20, prompts=True), tmp_path / "lengths.parquet"
    counted = count_lengths(dataset, length_fn=make())
    write_lengths(path, counted, dataset, length_fn=make())
    assert read_lengths(path, dataset, length_fn=make()) == counted


def test_another_length_function_makes_it_stale(cache: Path) -> None:
    with pytest.raises(MismatchError, match="length_fn None, and this is 'labels_alone'"):
        read_lengths(cache, Cut(100, 64), transform="cut at 64", length_fn=labels_alone)


def test_files_that_are_not_such_or_are_damaged_are_refused(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no file"):
        read_lengths(tmp_path / "none.parquet", Cut(100, 64))
    table = parquet.read_table(cache)
    parquet.write_table(table.replace_schema_metadata({}), tmp_path / "plain.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet")
    for name in ("plain", "text"):
        with pytest.raises(ConfigurationError, match="was not written by evenstep lengths"):
            read_lengths(tmp_path / f"{name}.parquet", Cut(100, 64))
    parquet.write_table(table.slice(1), cache)
    with pytest.raises(ConfigurationError, match="is damaged"):
        read_lengths(cache, Cut(100, 64), transform="cut at 64")


def test_lengths_of_part_of_a_dataset_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="3 lengths for a dataset of 100"):
        write_lengths(tmp_path / "f.parquet", Lengths(np.array([1, 2, 3])), Cut(100, 64))
    assert not list(tmp_path.iterdir())


SCRIPT = """
from documents import Documents

def make():
    return Documents(50)

made = make()
def count(sample):
    return 7
"""


@pytest.mark.parametrize("name", ["make", "made"])
def test_the_command_counts_checks_and_refuses(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from evenstep.cli.app import run

    script, out = tmp_path / f"job_{name}.py", tmp_path / "out.parquet"
    script.write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["lengths", f"{script}:{name}", "--out", str(out), "--json"]
    assert run([*arguments, "--num-workers", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    lengths = Documents(50).lengths
    assert (figures["samples"], figures["tokens"]) == (50, lengths.sum())
    assert (figures["shortest"], figures["longest"]) == (lengths.min(), lengths.max())
    assert run([*arguments, "--check"]) == 0
    assert run([*arguments, "--check", "--transform", "other"]) != 0
    assert "is stale" in capsys.readouterr().err
    assert run([*arguments, "--length-fn", f"{script}:count"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 50 * 7


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("no_such_module:make", "there is no module 'no_such_module'"),
        ("documents:nothing", "documents has no 'nothing'"),
        ("documents", "must be FILE.py:NAME or package.module:NAME"),
        ("documents:VOCABULARY", "neither a map-style dataset nor a function"),
    ],
)
def test_a_name_that_stands_for_no_dataset_is_refused(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evenstep.cli.app import run

    assert run(["lengths", name, "--out", str(tmp_path / "f.parquet")]) != 0
    assert says in " ".join(capsys.readouterr().err.split())
