from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.image_cells import drawn_images, image_cells
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
    with pytest.raises(ImportError, match=r"\.\[cli\]"):
        load_lengths(str(tmp_path / "documents.parquet:tokens"))


# Distributions


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


# From their pages and papers: a figure of the lengths, what it is, and how far draws may lie apart.
FIGURES: dict[str, list[tuple[Callable[[np.ndarray], float], float, dict[str, float]]]] = {
    # OVERLORD, section 2.3: share of texts with at most 64 tokens; share of the longest 1.62 % in
    # all tokens. From the data set's own page: mean, shortest and longest.
    "coyo-text": [
        (lambda x: (x <= 64).mean(), 0.9823, {"abs": 0.001}),
        (lambda x: np.sort(x)[-round(0.0162 * len(x)) :].sum() / x.sum(), 0.093, {"abs": 0.003}),
        (np.mean, 17.24, {"rel": 0.005}),
        (np.min, 3, {"abs": 0}),
        (np.max, 1523 - 261, {"abs": 261}),
    ],
    # Mean width 621.78 and mean height 540.99; none is below 200. Of images, 57 % are less than
    # 600 pixels wide and 71 % less than 600 high.
    "coyo-image": [
        (lambda x: (28 * np.sqrt(x)).mean(), (621.78 + 540.99) / 2, {"rel": 0.005}),
        (np.min, 200**2 // 28**2, {"abs": 0}),
        (lambda x: (28 * np.sqrt(x) < 600).mean(), (0.57 + 0.71) / 2, {"abs": 0.01}),
    ],
    # The short part ends at 512, where few of the long part's samples are.
    "mm-mix": [
        (np.mean, 789, {"rel": 0.01}),
        (lambda x: x.std() / x.mean(), 0.80, {"abs": 0.01}),
        (lambda x: (x <= 512).mean(), 0.37 + 0.63 * 0.04, {"abs": 0.63 * 0.04}),
    ],
    "pretrain-128k": [
        (lambda x: float(np.median(x[x < 16_384])), 2500, {"rel": 0.05}),
        (lambda x: (x >= 16_384).mean(), 0.018 + 0.982 * 0.0094, {"abs": 0.001}),
        (np.max, 130_536, {"abs": 536}),
    ],
}


@pytest.mark.parametrize("name", FIGURES)
@settings(max_examples=2, deadline=None)
@given(seed=seeds)
def test_draws_have_the_figures_of_their_data_for_any_seed(name: str, seed: int) -> None:
    lengths = sample_lengths(name, 96_000, seed)
    for figure, expected, within in FIGURES[name]:
        assert figure(lengths) == pytest.approx(expected, **within)
    apart = np.corrcoef(lengths[:-1].astype(float), lengths[1:])[0, 1]
    assert abs(apart) < 0.05, "in random order, not sorted by stratum"


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


@pytest.mark.parametrize(
    ("width", "height", "cells"),
    [
        (1000, 700, 36 * 25),
        (56, 56, 4),
        (14, 13, 3 * 2),  # small ones are enlarged to 4 cells or more
        (28 * 4000, 28, 2262),  # one cell high at least, as the processor has it
        (4000, 3000, 41 * 30),  # large ones shrink to 1,280 cells or fewer
    ],
)
def test_images_are_scaled_to_whole_cells(width: int, height: int, cells: int) -> None:
    assert image_cells([width], [height]).tolist() == [cells]


def test_drawn_images_add_their_tokens() -> None:
    rows = drawn_images(sample_lengths("ultrachat", 2000), "coyo-image", 0)
    lengths, patches, images, pairs = rows
    assert images.max() == 4
    assert 0.2 < (images == 0).mean() < 0.3
    assert (lengths > patches // 4).all()
    assert (pairs >= patches**2 // np.maximum(images, 1)).all()


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_count_that_is_no_positive_integer_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match="count="):
        sample_lengths("llava", count)
