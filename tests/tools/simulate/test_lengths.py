from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.simulate.distributions import DISTRIBUTIONS
from evenstep.tools.simulate.lengths import load_lengths


def save(folder: Path, values: object) -> str:
    path = folder / "lengths.npy"
    np.save(path, np.asarray(values))
    return str(path)


def save_parquet(folder: Path, values: object) -> str:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder / "documents.parquet"
    parquet.write_table(arrow.table({"text": ["a"] * len(values), "tokens": values}), path)  # type: ignore[arg-type]
    return f"{path}:tokens"


@pytest.mark.parametrize("write", [save, save_parquet])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.uint64])
def test_integers_of_any_type_are_read_as_int64(tmp_path: Path, write: Any, dtype: Any) -> None:
    lengths = load_lengths(write(tmp_path, np.array([3, 1, 400], dtype)))
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [3, 1, 400]


def test_fewer_samples_than_the_file_holds_are_chosen_at_random_in_file_order(
    tmp_path: Path,
) -> None:
    path = save(tmp_path, np.arange(1, 1001))
    chosen = load_lengths(path, samples=100, seed=1)
    assert len(set(chosen.tolist())) == 100
    assert (np.diff(chosen) > 0).all()
    assert chosen.max() > 500
    assert (chosen == load_lengths(path, samples=100, seed=1)).all()
    assert (chosen != load_lengths(path, samples=100, seed=2)).any()


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_lengths("wikipedia", samples=3)
    assert "'wikipedia'" in str(caught.value)
    assert all(name in str(caught.value) for name in DISTRIBUTIONS)


@pytest.mark.parametrize("column", [":lengths", ":", ""])
def test_missing_column_lists_the_columns_there_are(tmp_path: Path, column: str) -> None:
    path = save_parquet(tmp_path, [1]).removesuffix(":tokens")
    with pytest.raises(ConfigurationError, match="text, tokens"):
        load_lengths(path + column)


@pytest.mark.parametrize(
    ("write", "values", "message"),
    [
        (save, [1.5, 2.0], "float64"),
        (save, [True, False], "bool"),
        (save, [[1, 2], [3, 4]], r"shape \(2, 2\)"),
        (save, np.empty(0, np.int64), "no lengths"),
        (save, [3, 0, -2], r"2 lengths .* at least 1, the first of them 0 at position 1"),
        (save, [3, 2**31], r"below 2,147,483,648, the first of them 2147483648 at position 1"),
        (save, np.array([2**64 - 1], np.uint64), "below"),
        (save, np.array([{}], object), "cannot be read"),  # pickled objects are never loaded
        (save_parquet, ["a"], r"tokens holds .*string.*integers"),
        (save_parquet, [1, None, 3], "1 empty values"),
    ],
)
def test_data_that_cannot_be_lengths_is_refused(
    tmp_path: Path, write: Any, values: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_lengths(write(tmp_path, values))


@pytest.mark.parametrize("name", ["broken.npy", "broken.parquet"])
def test_a_file_of_another_format_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    for content in (b"", b"not an array at all"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"broken\..* cannot be read"):
            load_lengths(str(tmp_path / name))


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documents.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"evenstep\[cli\]"):
        load_lengths(str(tmp_path / "documents.parquet:tokens"))
