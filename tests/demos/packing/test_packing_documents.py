from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep_demos.packing.documents import read_documents

FILES = {
    "a.py": b"x = 1\n",
    "deep/er/b.py": "# caf\u00e9\n".encode(),
    "copy_of_a.py": b"x = 1\n",
    "latin.py": b"# caf\xe9\n",
    "empty.py": b"",
    "blank.py": b" \n",
    "notes.txt": b"not python",
    ".git/hidden.py": b"hidden = 1\n",
    "site-packages/other.py": b"y = 2\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def parquet(path: Path, columns: dict[str, list]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=4)
    return path


def test_files_of_a_tree_are_documents_and_what_cannot_be_one_is_counted(tree: Path) -> None:
    seen: list[tuple[int, int]] = []
    documents = read_documents(tree, progress=lambda *done: seen.append(done))
    # The accent is two bytes.
    assert sorted(documents.lengths.tolist()) == [6, 8]
    assert documents.found == 6
    assert "6 documents, 4 left out" in str(documents)
    assert seen[-1] == (6, 6)
    assert read_documents(tree, glob="*.txt").lengths.tolist() == [10]


def test_tokens_are_those_of_the_tokenizer(tree: Path, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "=": 1, "1": 2, "?": 3}, "?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path))
    documents = read_documents(tree, tokenizer=str(path))
    assert sorted(documents.lengths.tolist()) == [2, 3]
    assert str(path) in documents.tokens


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("text", ["a", "bcd", "\u00e9"]),
        ("input_ids", [[7], [7, 7, 7], [7, 7]]),
        ("n", [1, 3, 2]),
    ],
)
def test_a_parquet_column_holds_text_or_token_ids_or_lengths(
    tmp_path: Path, column: str, values: list
) -> None:
    path = parquet(tmp_path / "t.parquet", {column: values})
    documents = read_documents(path)
    assert sorted(documents.lengths.tolist()) == [1, 2, 3]
    assert documents.found == 3


def test_data_that_cannot_be_read_is_refused_by_name(tree: Path) -> None:
    for data, glob, told in (
        (tree / "a.py", "*", "is neither a folder"),
        (tree / "missing", "*", "does not exist"),
        (tree / "missing.parquet", "*", "missing.parquet"),
        (tree, "*.rs", r"matches glob='\*\.rs'"),
        (tree, "blank.py", "has any text"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            read_documents(data, glob=glob)


def test_the_running_interpreter_has_documents() -> None:
    documents = read_documents(None, glob="a*.py")
    assert len(documents.lengths) > 5
    assert documents.lengths.dtype == np.int64
