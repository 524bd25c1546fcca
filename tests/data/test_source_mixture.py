"""A mixture over real readers: what is drawn by position is what any reader finds there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evenstep.data import Source, SourceReader, open_reader
from evenstep.strategy.mixture import Mixture
from evenstep.strategy.sample_table import SampleTable

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


class Readers:
    """`Metadata` that reads samples to tell their lengths."""

    def __init__(self, sources: list[Source], *, repeat: bool) -> None:
        self.names = tuple(source.name for source in sources)
        self.sources, self.repeat = sources, repeat

    def open(self, source: int) -> SourceReader:
        return open_reader(self.sources[source], seed=3, repeat=self.repeat)

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        with self.open(source) as reader:
            items = [item for item, _ in zip(reader.read(position), range(count))]
        lengths = [self.sources[source].measure(i.sample, i.shard, i.index)["text"] for i in items]
        return SampleTable(
            self.names,
            np.full(len(items), source, np.int32),
            np.array([i.position for i in items], np.int64),
            np.array([i.shard for i in items], np.int32),
            np.array([i.index for i in items], np.int64),
            {"text": np.array(lengths, np.int64)},
        )


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    rows = [{"id": i, "input_ids": [i] * (1 + i % 9)} for i in range(60)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=13)
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps(row) for row in rows[:35]))
    return [
        Source("a", str(tmp_path / "a.parquet")),
        Source("b", str(tmp_path / "b.jsonl"), block=8),
        Source("c", rows[:50], block=11),
    ]


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_each_sample_of_each_source_is_drawn_once_and_found_by_position(sources, unit):
    provider = Readers(sources, repeat=False)
    mixture = Mixture(
        provider.names,
        {"a": 3, "b": 1, "c": 2},
        unit=unit,
        tokens_per_step=90,
        stop="all_exhausted",
        sizes={name: provider.open(s).size for s, name in enumerate(provider.names)},
    )
    found = []
    while not mixture.ended:
        table = mixture.draw(mixture.step, provider)
        for row in range(len(table)):
            source, position = int(table.source[row]), int(table.position[row])
            with provider.open(source) as reader:
                item = next(reader.read(position))
            assert (item.shard, item.index) == (table.shard[row], table.index[row])
            assert len(item.sample["input_ids"]) == table.lengths["text"][row]
            found.append((source, item.sample["id"]))
    assert sorted(found) == [(s, i) for s, n in enumerate((60, 35, 50)) for i in range(n)]


def test_sources_that_repeat_go_on_with_other_orders(sources):
    provider = Readers(sources, repeat=True)
    mixture = Mixture(provider.names, {"a": 1, "b": 1}, samples_per_step=50)
    tables = SampleTable.concatenate([mixture.draw(step, provider) for step in range(4)])
    of_b = tables[tables.source == 1]
    passes = [
        list(zip(of_b.shard[k : k + 35].tolist(), of_b.index[k : k + 35].tolist())) for k in (0, 35)
    ]
    assert sorted(passes[0]) == sorted(passes[1])
    assert passes[0] != passes[1]
