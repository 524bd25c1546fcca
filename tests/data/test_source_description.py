"""What a `Source` is checked for, what it does to samples, and the order that they have."""

from __future__ import annotations

import functools
import itertools
import pickle
import sys
import threading
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_checks import take

from evenstep.data import ShardOrder, Source, open_reader
from evenstep.errors import ConfigurationError, SampleError
from page_code import blocks

SAMPLES = [{"id": i, "input_ids": list(range(i + 1))} for i in range(20)]


def add(sample, amount=1):
    if sample["id"] == 13:
        raise ValueError("thirteen")
    return {**sample, "id": sample["id"] + amount}


def nothing(sample):
    return None


def test_a_transform_is_applied_to_every_sample_or_left_to_who_asks():
    source = Source("s", SAMPLES[:10], transform=functools.partial(add, amount=5), shuffle=False)
    with open_reader(source) as reader:
        assert [item.sample["id"] for item in take(reader, 10)] == list(range(5, 15))
        stored = take(reader, 10, transform=False)
    assert [item.sample for item in stored] == SAMPLES[:10]
    assert source.prepare(stored[3].sample, 0, 3)["id"] == 8


def test_a_transform_that_fails_names_itself_and_the_sample():
    with open_reader(Source("s", SAMPLES, transform=add, block=8, shuffle=False)) as reader:
        with pytest.raises(SampleError) as error:
            take(reader, 20)
        assert len(take(reader, 6, 14)) == 6
    assert "add raised ValueError for sample s[1][5]: thirteen" in str(error.value)
    with pytest.raises(SampleError, match=r"nothing gave None for sample s\[0\]\[0\]"):
        take(open_reader(Source("s", SAMPLES, transform=nothing, shuffle=False)), 1)


def test_what_cannot_travel_is_refused_where_it_is_built():
    held = threading.Lock()
    with pytest.raises(ConfigurationError) as error:
        Source("web", "a.jsonl", transform=functools.partial(add, amount=held))
    assert "test_source_description.add with" in str(error.value)
    assert "of source 'web' cannot be sent to other processes" in str(error.value)
    with pytest.raises(ConfigurationError, match=r"transform .*<lambda> of source 'web' can"):
        Source("web", "a.jsonl", transform=lambda sample: held)
    with pytest.raises(ConfigurationError, match=r"lengths .*<lambda> of source 'web' cannot"):
        Source("web", "a.jsonl", lengths=lambda sample: held)
    Source("web", "a.jsonl", transform=lambda sample: sample)
    with pytest.raises(ConfigurationError, match="transform=3 of source 'web' must be a function"):
        Source("web", "a.jsonl", transform=3)
    source = pickle.loads(pickle.dumps(Source("web", "a.jsonl", transform=add, weight=2)))
    assert (source.name, source.transform, source.weight) == ("web", add, 2)


def test_credentials_are_not_in_the_text_of_a_source():
    source = Source("web", "s3://corpus/a.jsonl", storage_options={"secret": "hidden"})
    assert "s3://corpus/a.jsonl" in repr(source)
    assert "hidden" not in repr(source)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": ""}, "name=''"),
        ({"weight": -1}, "weight=-1 of source 's'"),
        ({"weight": float("nan")}, "weight=nan"),
        ({"columns": "text"}, "columns='text'"),
        ({"format": "csv"}, "format='csv'.*parquet, jsonl"),
        ({"data": "folder"}, "cannot be determined from folder; pass format="),
        ({"data": ["a.tar", "b.parquet"]}, "cannot be determined from a.tar, b.parquet"),
        ({"data": 5}, "a int; give paths or"),
        ({"block": 0}, "block=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        Source(**{"name": "s", "data": "a.jsonl", **arguments})


def test_the_code_on_sources_of_the_page_on_mixtures_runs(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(3):
        rows = {"id": list(range(100)), "text": ["some text"] * 100, "more": [0] * 100}
        parquet.write_table(
            arrow.table(rows), tmp_path / f"code-{number}.parquet", row_group_size=30
        )
    page = ModuleType("page_of_sources")  # functions that are pickled must be found by name
    page.folder = tmp_path
    monkeypatch.setitem(sys.modules, page.__name__, page)
    code = blocks("mixtures.md", "Sources")
    assert len(code) == 2
    for block in code:
        exec(compile(block, "mixtures.md", "exec"), page.__dict__)
    assert page.item.position == 100
    with open_reader(page.tokens) as reader:
        assert len(next(reader.read()).sample["input_ids"]) == len("some text")


# An order is a function of (seed, pass)

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)
flags = st.booleans()


def places(order: ShardOrder, position: int, count: int) -> list[tuple[int, ...]]:
    found = (
        (part.pass_number, part.shard, index)
        for part in order.parts(position)
        for index in part.indices.tolist()
    )
    return list(itertools.islice(found, count))


@given(sizes, st.integers(0, 99), flags, flags, st.integers(0, 60))
def test_parts_from_any_position_say_what_where_says(sizes, seed, shards, samples, position):
    order = ShardOrder(sizes, seed=seed, name="a", shuffle_shards=shards, shuffle_samples=samples)
    expected = [tuple(order.where(p)) for p in range(position, position + 40)]
    assert places(order, position, 40) == expected
    begins = [part.position for part in itertools.islice(order.parts(position), 8)]
    counts = [len(part.indices) for part in itertools.islice(order.parts(position), 8)]
    assert begins == np.cumsum([position, *counts])[:-1].tolist()


@given(sizes, st.integers(0, 99), flags, flags, st.integers(0, 3))
def test_each_pass_has_every_sample_once_and_shards_whole(sizes, seed, shards, samples, number):
    order = ShardOrder(sizes, seed=seed, name="a", shuffle_shards=shards, shuffle_samples=samples)
    found = places(order, number * order.size, order.size)
    assert sorted(found) == [(number, s, i) for s, n in enumerate(sizes) for i in range(n)]
    assert len([key for key, _ in itertools.groupby(found, lambda f: f[1])]) == np.count_nonzero(
        sizes
    )


def test_passes_seeds_and_names_have_orders_of_their_own():
    def order(seed, name, number):
        return [
            w[1:] for w in places(ShardOrder([20] * 20, seed=seed, name=name), number * 400, 400)
        ]

    found = [order(*key) for key in [(0, "a", 0), (0, "a", 1), (1, "a", 0), (0, "b", 0)]]
    assert len({tuple(f) for f in found}) == 4
    assert order(0, "a", 1) == found[1]
