from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.tools.advise import draw_length_sample
from evenstep.tools.advise.length_sources import draw_lines

WORDS = ["Every", "rank", "makes", "the", "same", "number", "of", "steps"]


def texts(count: int) -> list[str]:
    return [" ".join(WORDS[: 1 + row % len(WORDS)]) for row in range(count)]


def words_in(count: int) -> list[int]:
    return [1 + row % len(WORDS) for row in range(count)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """Words are tokens; the file asks for truncation and padding, as some do."""
    package = pytest.importorskip("tokenizers")
    words = package.Tokenizer(
        package.models.WordLevel({word: i for i, word in enumerate([*WORDS, "?"])}, unk_token="?")
    )
    words.pre_tokenizer = package.pre_tokenizers.Whitespace()
    words.enable_truncation(2)
    words.enable_padding(length=5)
    words.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def parquet_file(path: Path, *, rows_per_group: int = 10, **columns: Any) -> str:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path, row_group_size=rows_per_group)
    return str(path)


def jsonl_file(path: Path, records: list[Any]) -> str:
    content = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(path)


def test_npy_lengths_are_drawn_and_number_and_longest_are_those_of_all(tmp_path: Path) -> None:
    path = str(tmp_path / "l.npy")
    np.save(path, np.arange(1, 1001))
    drawn, again, other = (draw_length_sample(path, size=50, seed=seed) for seed in (2, 2, 3))
    assert (len(set(drawn.lengths)), drawn.total, drawn.longest) == (50, 1000, 1000)
    assert not drawn.whole
    assert (drawn.lengths == again.lengths).all()
    assert (drawn.lengths != other.lengths).any()
    for size in (None, 1000, 1001):
        whole = draw_length_sample(path, size=size)
        assert whole.whole
        assert whole.lengths.tolist() == list(range(1, 1001))


@pytest.mark.parametrize("form", ["parquet", "jsonl", "jsonl.gz"])
def test_text_token_ids_and_lengths_of_the_same_samples_agree(
    tmp_path: Path, tokenizer: str, form: str
) -> None:
    columns = {
        "text": texts(37),
        "input_ids": [[7] * n for n in words_in(37)],
        "tokens": words_in(37),
    }
    path = tmp_path / f"data.{form}"
    if form == "parquet":
        data = parquet_file(path, **columns)
    else:
        data = jsonl_file(path, [dict(zip(columns, row)) for row in zip(*columns.values())])
    drawn: list[list[int]] = []
    for column in columns:
        every = draw_length_sample(f"{data}:{column}", tokenizer=tokenizer, size=None)
        assert every.lengths.tolist() == words_in(37)
        assert (every.total, every.longest) == (37, len(WORDS))
        some = draw_length_sample(f"{data}:{column}", tokenizer=tokenizer, size=20, seed=1)
        assert (len(some.lengths), some.total) == (20, 37)
        # Equal seeds draw equal rows, whatever the column.
        drawn.append(some.lengths.tolist())
        assert some.longest == (len(WORDS) if (form, column) == ("parquet", "tokens") else None)
    assert drawn[0] == drawn[1] == drawn[2]
    # Without a column: token ids, or text where there is a tokenizer for it.
    assert draw_length_sample(data).name.endswith(":input_ids")
    assert draw_length_sample(data, tokenizer=tokenizer).name.endswith(":text")
    # A folder with the tokenizer's file is one, too.
    of_folder = draw_length_sample(f"{data}:text", tokenizer=str(tmp_path))
    assert of_folder.lengths.tolist() == words_in(37)


def test_every_line_is_equally_likely_to_be_drawn_however_long(tmp_path: Path) -> None:
    path = Path(
        jsonl_file(
            tmp_path / "d.jsonl", [{"t": "x" * (900 if row % 2 else 1)} for row in range(24)]
        )
    )
    draws, size = 600, 6
    counts = np.zeros(24)
    for seed in range(draws):
        lines, total = draw_lines(path, size, np.random.default_rng(seed))
        numbers = [number for number, _ in lines]
        assert (len(set(numbers)), total, numbers) == (size, 24, sorted(numbers))
        counts[np.array(numbers) - 1] += 1
    # Chi-squared with 23 degrees of freedom exceeds 60 once in 30,000.
    expected = draws * size / 24
    assert ((counts - expected) ** 2 / expected).sum() < 60


@pytest.mark.parametrize(
    ("form", "rows", "message"),
    [
        ("parquet", [[1], [], [2]], r"row 1 of .*d\.parquet:ids has length 0"),
        ("parquet", [[1], None, None], r"row 1 of .* has length None"),
        ("parquet", [True, False], r"row 0 of .* has length True"),
        ("parquet", [1.5], r"row 0 of .* has length 1.5"),
        ("parquet", ["a"], r"holds text: give --tokenizer"),
        ("jsonl", [{"n": 3}, {"n": 0}, {"n": -1}], r"line 2 of .*d\.jsonl:n has length 0"),
        ("jsonl", [{"n": 3}, {"m": 3}], r"line 2 of .* has length None"),
        ("jsonl", [{"n": {"a": 1}}], r"line 1 of .* has length {'a': 1}"),
        ("jsonl", [{"text": "a"}], r"holds text: give --tokenizer"),
        ("jsonl", [[1, 2]], r"line 1 .* not an object"),
        ("jsonl", [], "no samples"),
        ("jsonl", b'{"n": 3}\n\n{"n": \n', r"line 3 of .*d\.jsonl is not JSON"),
        ("jsonl.gz", gzip.compress(b'{"n": 3}\n' * 100, mtime=0)[:-12], r"d\.jsonl\.gz cannot be"),
    ],
)
def test_a_bad_row_or_a_damaged_file_is_named(
    tmp_path: Path, form: str, rows: Any, message: str
) -> None:
    path = tmp_path / f"d.{form}"
    if isinstance(rows, bytes):
        path.write_bytes(rows)
    elif form == "parquet":
        parquet_file(path, ids=rows)
    else:
        jsonl_file(path, rows)
    with pytest.raises(ConfigurationError, match=message):
        draw_length_sample(str(path))
