from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.tools.simulate.distributions import (
    DISTRIBUTIONS,
    sample_lengths,
)
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


# ODB, Table 10 (mean, median, P95, P99, maximum) and section 3.1 (CV).
PUBLISHED = {
    "ultrachat": (1196, 1104, 2239, 3065, 4471, 0.48),
    "llava": (508, 463, 814, 914, 1260, 0.29),
    "sharegpt4o": (1511, 977, 4584, 8937, 12110, 1.00),
}
seeds = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=3, deadline=None)
@given(seed=seeds)
def test_draws_have_the_published_statistics_for_any_seed(name: str, seed: int) -> None:
    mean, median, p95, p99, longest, cv = PUBLISHED[name]
    lengths = sample_lengths(name, 96_000, seed)
    drawn = [lengths.mean(), *np.quantile(lengths, [0.5, 0.95, 0.99])]
    assert drawn == pytest.approx([mean, median, p95, p99], rel=0.03)
    assert lengths.max() <= longest
    assert lengths.std() / lengths.mean() == pytest.approx(cv, abs=0.03)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 300), seed=seeds)
def test_any_count_is_drawn_whole_positive_and_repeatable(name: str, count: int, seed: int) -> None:
    lengths = sample_lengths(name, count, seed)
    assert lengths.dtype == np.int64
    assert lengths.shape == (count,)
    assert DISTRIBUTIONS[name].shortest <= lengths.min()
    assert lengths.max() <= DISTRIBUTIONS[name].longest
    assert (lengths == sample_lengths(name, count, seed)).all()
