from __future__ import annotations

from pathlib import Path

import pytest

from evenstep.errors import ConfigurationError
from evenstep_demos.text import corpus
from evenstep_demos.text.corpus import read_parquet, read_standard_library


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def _parquet(path: Path, columns: dict[str, list], rows_per_group: int = 4) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def test_blocks_that_are_blank_unreadable_or_copies_are_left_out(tmp_path: Path) -> None:
    files = {
        "a.py": b"x = 1\n",
        "pkg/copy_of_a.py": b"x = 1\n",
        "two.py": b"import y\n\n\ndef f():\n    pass\n\n\n\n    x\n\n\n@g\nclass C: ...\n",
        "pkg/latin.py": "# -*- coding: latin-1 -*-\n# caf\u00e9\n".encode("latin-1"),
        "broken.py": b"# \xff\xfe\n",
        "empty.py": b"",
        "blank.py": b" \n",
        "notes.txt": b"not python",
        "site-packages/other.py": b"y = 2\n",
    }
    _write(tmp_path, files)
    read = read_standard_library(0, tmp_path)
    assert sorted(read.documents) == [
        "# -*- coding: latin-1 -*-\n# caf\u00e9\n",
        "@g\nclass C: ...\n",
        "def f():\n    pass\n\n\n\n    x",
        "import y",
        "x = 1\n",
    ]
    assert read.found == 9


def test_a_folder_without_sources_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--data FILE\.parquet"):
        read_standard_library(0, tmp_path)


def test_reading_stops_when_there_is_enough_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHARACTERS", 50)
    path = _parquet(tmp_path / "t.parquet", {"text": [f"{i:010d}" for i in range(100)]})
    read = read_parquet(path, "text", 0)
    assert (len(read.documents), read.found) == (5, 100)


def test_rows_of_a_parquet_column_are_read_once_each(tmp_path: Path) -> None:
    texts = [f"document {i}" for i in range(10)]
    path = _parquet(tmp_path / "t.parquet", {"body": [*texts, None, "", "document 3"]})
    read = read_parquet(path, "body", 0)
    assert sorted(read.documents) == sorted(texts)
    assert read.found == 13
    assert read_parquet(path, "body", 1).documents != read.documents


def test_a_wrong_column_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "t.parquet", {"id": [1, 2], "body": ["a", "b"]})
    with pytest.raises(ConfigurationError, match=r"no column 'text'; it has id, body"):
        read_parquet(path, "text", 0)
    with pytest.raises(ConfigurationError, match=r"'id' of .* holds int64, not text"):
        read_parquet(path, "id", 0)


def test_a_file_that_is_not_parquet_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("no parquet")
    for name in ("t.parquet", "missing.parquet"):
        with pytest.raises(ConfigurationError, match=name):
            read_parquet(tmp_path / name, "text", 0)
