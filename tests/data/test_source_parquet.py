"""Parquet: order, seeking, schemas, fsspec and the corpora."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from source_checks import check_order_and_seeking, take

from evenstep.data import Source, open_reader
from evenstep.data.row_groups import SizedCache
from evenstep.data.source_files import SourceFile
from evenstep.errors import ConfigurationError

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def corpus(tmp_path: Path) -> SimpleNamespace:
    """Three files of 25, 7 and 40 rows, in row groups of 10."""
    paths, number = [], 0
    for name, rows in (("b", 25), ("a", 7), ("c", 40)):
        ids = list(range(number, number + rows))
        number += rows
        table = arrow.table({"id": ids, "text": [f"text {i}" for i in ids], "n": [1.5] * rows})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10)
        paths.append(str(tmp_path / f"{name}.parquet"))
    return SimpleNamespace(folder=tmp_path, glob=str(tmp_path / "*.parquet"), paths=paths, rows=72)


@pytest.mark.parametrize("shuffle", [None, False])
def test_order_and_seeking(corpus, shuffle):
    first = check_order_and_seeking(
        lambda: Source("s", corpus.glob, shuffle=shuffle), corpus.rows, seeks=range(0, 147, 10)
    )
    ids = [item.sample["id"] for item in first]
    assert sorted(ids) == list(range(72))
    # Files in order of their names: a, b, c.
    assert (ids == [*range(25, 32), *range(25), *range(32, 72)]) == (shuffle is False)
    assert first[0].sample.keys() == {"id", "text", "n"}


@pytest.fixture
def decoded(monkeypatch):
    """Row groups in the order in which they are decoded."""
    groups = []
    real = parquet.ParquetFile.iter_batches

    def counted(self, *args, row_groups, **options):
        groups.extend(row_groups)
        return real(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    return groups


@pytest.mark.parametrize("room", [60, 100, 300])
def test_a_row_group_in_slices_gives_the_same_samples(corpus, monkeypatch, decoded, room):
    with open_reader(Source("s", corpus.glob)) as reader:
        whole = take(reader, 150)
    decoded.clear()
    monkeypatch.setattr("evenstep.data.parquet.DECODED", SizedCache(room))
    monkeypatch.setattr("evenstep.data.parquet._BATCH_BYTES", 200)  # several to a row group
    with open_reader(Source("s", corpus.glob)) as reader:
        assert take(reader, 150) == whole
        assert len(decoded) > 2 * 8
        for position in range(0, 150, 29):
            assert take(reader, 150 - position, position) == whole[position:]


@pytest.mark.parametrize("columns", [None, ["text"], ["words", "n"]])
def test_a_row_group_of_another_machine_is_fetched_once(tmp_path, monkeypatch, decoded, columns):
    table = arrow.table(
        {
            "id": list(range(400)),
            "text": [f"text {i} " * 20 for i in range(400)],
            "words": [[f"w{i % 7}"] * 30 for i in range(400)],
            "n": [i / 7 for i in range(400)],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=200)
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/far/a.parquet", (tmp_path / "a.parquet").read_bytes())
    monkeypatch.setattr("evenstep.data.parquet.DECODED", SizedCache(8000))
    opened = []
    real = SourceFile.open
    monkeypatch.setattr(SourceFile, "open", lambda file: opened.append(file.path) or real(file))
    with open_reader(Source("s", str(tmp_path / "a.parquet"), columns=columns)) as reader:
        there = take(reader, 400)
    assert not opened
    decoded.clear()
    with open_reader(Source("s", "memory://far/a.parquet", columns=columns)) as reader:
        assert take(reader, 400) == there
    assert len(decoded) > 2 * 2
    # The footer, and each row group; twice, if it was thought to be small until it was decoded.
    assert len(opened) == 1 + 2 * (2 if columns == ["words", "n"] else 1)


def test_a_source_goes_on_from_its_place_after_its_rows_were_dropped(corpus, monkeypatch, decoded):
    kept = SizedCache(128 << 20)
    monkeypatch.setattr("evenstep.data.parquet.DECODED", kept)
    monkeypatch.setattr("evenstep.data.row_groups._CHUNK_ROWS", 1)
    with open_reader(Source("a", corpus.glob)) as a, open_reader(Source("b", corpus.glob)) as b:
        whole = take(a, 20)
        items = a.read()
        begun = [next(items) for _ in range(3)]
        size = kept.size
        assert size > 0
        take(b, 300)
        b.close()
        assert kept.size == 0  # those of a were dropped before
        decoded.clear()
        assert begun + [next(items) for _ in range(17)] == whole
        assert len(decoded) == 3  # the rest of one, and two more
        assert a.size == 72


def test_what_every_type_holds_is_what_pyarrow_gives(tmp_path, monkeypatch):
    n = 300
    columns = {
        "missing": arrow.array([None if i % 7 == 0 else i for i in range(n)], arrow.int32()),
        "words": arrow.array([f"w{i % 9 if i < 150 else i}" for i in range(n)]).dictionary_encode(),
        "lists": arrow.array([list(range(i % 5)) if i % 11 else None for i in range(n)]),
        "deep": arrow.array([{"a": i, "b": [{"c": str(i)}]} if i % 3 else None for i in range(n)]),
        "times": arrow.array(range(n), arrow.timestamp("us", tz="Europe/Paris")),
        "long": arrow.array(["x" * i for i in range(n)], arrow.large_string()),
        "float32": arrow.array([[i / 3] * (i % 4) for i in range(n)], arrow.list_(arrow.float32())),
        "map": arrow.array([[("k", i)] for i in range(n)], arrow.map_(arrow.string(), "int64")),
        "nothing": arrow.nulls(n),
    }
    path = tmp_path / "types.parquet"
    parquet.write_table(arrow.table(columns), path, row_group_size=200, data_page_size=500)
    with parquet.ParquetFile(path) as file:
        stored = [file.read_row_group(group).to_pylist() for group in range(2)]
    monkeypatch.setattr("evenstep.data.parquet._BATCH_BYTES", 3000)
    for room in (128 << 20, 10_000):
        monkeypatch.setattr("evenstep.data.parquet.DECODED", SizedCache(room))
        with open_reader(Source("s", str(path))) as reader:
            for item in reader.read(passes=1):
                assert repr(item.sample) == repr(stored[item.shard][item.index])


def test_a_list_of_paths_is_one_source_and_no_file_comes_twice(corpus):
    given = [corpus.paths[2], corpus.glob, corpus.paths[0]]
    with open_reader(Source("s", given, shuffle=False)) as reader:
        assert reader.size == 72
        ids = [item.sample["id"] for item in reader.read(passes=1)]
    assert ids == [*range(25, 32), *range(25), *range(32, 72)]  # a, b, c


def test_another_schema_than_the_first_files_is_named(corpus):
    table = arrow.table({"id": ["x"], "text": ["y"], "n": [1.5]})
    parquet.write_table(table, corpus.folder / "d.parquet")
    with pytest.raises(
        ConfigurationError, match=r"column 'id' is string in .*d.parquet and int64 in .*a"
    ):
        open_reader(Source("s", corpus.glob))
    open_reader(Source("s", corpus.glob, columns=["text"])).close()
    parquet.write_table(table.drop_columns(["n"]), corpus.folder / "d.parquet")
    with pytest.raises(ConfigurationError, match=r"'n' is absent in .*d.parquet and double"):
        open_reader(Source("s", corpus.glob, columns=["text", "n"]))


def test_what_cannot_be_read_is_named(corpus):
    with pytest.raises(ConfigurationError, match=r"'s': there is no file .*/none\*.parquet"):
        open_reader(Source("s", f"{corpus.folder}/none*.parquet"))
    with pytest.raises(ConfigurationError, match=r"'s': there is no file .*/none.parquet"):
        open_reader(Source("s", f"{corpus.folder}/none.parquet"))
    with pytest.raises(ConfigurationError, match=r"no column 'texts'; it has id, text, n"):
        open_reader(Source("s", corpus.glob, columns=["texts"]))
    (corpus.folder / "e.parquet").write_bytes(b"no parquet at all")
    with pytest.raises(ConfigurationError, match=r"'s': .*e.parquet cannot be read as Parquet"):
        open_reader(Source("s", corpus.glob))
    parquet.write_table(arrow.table({"id": []}), corpus.folder / "e.parquet")
    with pytest.raises(ConfigurationError, match="source 's' has no samples"):
        open_reader(Source("s", f"{corpus.folder}/e.parquet"))
