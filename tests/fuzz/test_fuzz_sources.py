"""Sources of samples that are damaged, or hold unexpected values: an error that names the source
or the sample, or samples; as many as the source said when it was opened."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")
pytest.importorskip("webdataset")

import pyarrow as arrow
from hypothesis import strategies as st
from mutations import WRONG, changed, damaged, fuzz, json_bytes
from pyarrow import parquet

from evenstep.data import Source, open_reader
from evenstep.errors import (
    ConfigurationError,
    SampleError,
)
from evenstep.tools.advise import draw_length_sample

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)
ROWS = [{"input_ids": list(range(1 + i % 5)), "text": f"n{i}"} for i in range(23)]


def jsonl() -> bytes:
    return b"".join(json_bytes(row) + b"\n" for row in ROWS)


def table() -> bytes:
    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(ROWS), file, row_group_size=10)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, row in enumerate(ROWS[:5]):
            for suffix, content in (("json", json_bytes(row)), ("txt", b"x" * (number * 400))):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return file.getvalue().rstrip(b"\0") + b"\0" * 1600  # ends with a block or two of zeros


WHOLE = {"a.jsonl": jsonl(), "a.parquet": table(), "a.tar": tar()}
COUNTS = {"a.jsonl": 23, "a.parquet": 23, "a.tar": 5}


def read(path: Path) -> int | None:
    """Samples of the first pass; None for a source that is refused."""
    try:
        reader = open_reader(Source("s", str(path), block=7))
    except ConfigurationError as error:
        assert str(path) in str(error)  # noqa: PT017
        return None
    with reader:
        try:
            found = sum(1 for _ in reader.read(passes=1))
        except SampleError as error:
            assert str(error).startswith("sample s[")  # noqa: PT017
            return None
        assert found == reader.size
    return found


def advised(path: Path) -> None:
    if path.suffix != ".tar":
        try:
            draw_length_sample(f"{path}:input_ids", size=9)
        except ConfigurationError as error:
            assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", WHOLE)
def test_a_source_cut_off_at_any_byte(name: str) -> None:
    content = WHOLE[name]
    (HERE / name).write_bytes(content)
    assert read(HERE / name) == COUNTS[name]
    step = max(len(content) // 40, 1)
    # The last block of zeros is padding.
    for end in range(0, len(content) - 1088 if name == "a.tar" else len(content), step):
        path = HERE / name
        path.write_bytes(content[:end])
        found = read(path)
        # Of JSON Lines, what is left are whole files too; a state notices by their sizes.
        assert found is None or (name == "a.jsonl" and found <= content[:end].count(b"\n") + 1)


@fuzz(25, st.sampled_from(list(WHOLE)).flatmap(lambda n: st.tuples(st.just(n), damaged(WHOLE[n]))))
def test_a_source_with_damaged_bytes(drawn: tuple[str, bytes]) -> None:
    name, content = drawn
    path = HERE / name
    path.write_bytes(content)
    read(path)
    advised(path)


@fuzz(15, st.lists(changed(ROWS[3]) | WRONG, min_size=1, max_size=4))
def test_lines_of_unexpected_values(rows: list[Any]) -> None:
    path = HERE / "b.jsonl"
    path.write_bytes(b"\n".join(map(json_bytes, rows)))
    read(path)
    advised(path)
