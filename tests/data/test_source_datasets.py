"""Datasets as sources: map-style and iterable, of torch and of Hugging Face."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from source_checks import check_order_and_seeking, take
from torch.utils.data import Dataset, IterableDataset

from evenstep.data import Source, open_reader
from evenstep.data.resumable import dataset_fingerprint
from evenstep.errors import ConfigurationError, SampleError


class Squares(Dataset):
    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, int]:
        if index == self.bad:
            raise OSError("disk")
        return {"id": index, "square": index * index}


class Stream(IterableDataset):
    """Of samples that name the pass; counts what was made."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch, self.made = count, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        for i in range(self.count):
            self.made += 1
            yield {"id": i}


class Keeping(Stream):
    """One that can tell its place."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def __iter__(self):
        while self.at < self.count:
            self.made += 1
            self.at += 1
            yield {"id": self.at - 1}
        self.at = 0


def numbers(count: int):
    return iter([{"id": i} for i in range(count)])


def test_map_style_blocks_are_shards():
    first = check_order_and_seeking(lambda: Source("s", Squares(50), block=8), 50)
    assert sorted(item.sample["id"] for item in first) == list(range(50))
    assert all(item.sample["id"] == item.shard * 8 + item.index for item in first)
    with open_reader(Source("s", [{"id": 3}, {"id": 4}], columns=["id"], shuffle=False)) as reader:
        assert [i.sample for i in reader.read(passes=1)] == [{"id": 3}, {"id": 4}]


@pytest.mark.parametrize("kind", [Stream, Keeping])
def test_iterable_order_and_seeking(kind):
    first = check_order_and_seeking(lambda: Source("s", kind(50)), 50)
    assert [item.sample["id"] for item in first] == list(range(50))


def test_a_stream_that_tells_its_place_is_not_read_again():
    dataset = Keeping(1000)
    with open_reader(Source("s", dataset)) as reader:
        take(reader, 900)
        assert tuple(reader.order(890)) == (0, 0, 890)
        assert dataset.made == 900
        assert [i.sample["id"] for i in take(reader, 5, 890)] == list(range(890, 895))
        assert dataset.made < 900 + 150
        assert [i.sample["id"] for i in take(reader, 3, 999)] == [999, 0, 1]
    plain = Stream(1000)
    with open_reader(Source("s", plain)) as reader:
        assert [i.sample["id"] for i in take(reader, 5, 890)] == list(range(890, 895))
        assert plain.made == 895


def test_each_pass_is_told():
    class Telling(Stream):
        def __iter__(self):
            return iter([(self.epoch, i) for i in range(3)])

    with open_reader(Source("s", Telling(0))) as reader:
        assert [i.sample for i in take(reader, 7)] == [(p // 3, p % 3) for p in range(7)]
        assert [i.sample for i in take(reader, 2, 4)] == [(1, 1), (1, 2)]


def test_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"id": list(range(40)), "text": [f"t{i}" for i in range(40)]}
    )
    first = check_order_and_seeking(lambda: Source("s", table, block=16), 40)
    assert sorted(item.sample["id"] for item in first) == list(range(40))

    def stream() -> Any:
        return table.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=5)

    with open_reader(Source("s", stream(), columns=["id"])) as reader:
        ids = [item.sample["id"] for item in take(reader, 80)]
    assert sorted(ids[:40]) == sorted(ids[40:]) == list(range(40))
    assert ids[:40] != ids[40:], "Hugging Face shuffles by the epoch, which it is told"
    # Its shards are shuffled by the epoch from the third pass on, though nobody asked for it.
    plain = functools.partial(table.to_iterable_dataset, num_shards=4)
    check_order_and_seeking(lambda: Source("s", plain), 40, alike=False)


def test_a_hugging_face_dataset_is_identified_by_its_rows():
    """Its own fingerprint is random where `map` cannot hash the function."""
    datasets = pytest.importorskip("datasets")

    def mapped(add: int) -> Any:
        class Unhashable:
            def __reduce__(self):
                raise TypeError

        held = Unhashable()
        rows = datasets.Dataset.from_dict({"id": list(range(100))})
        return rows.map(lambda row: {"id": row["id"] + add * (held is not None)})

    def identity(dataset: Any) -> Any:
        return dataset_fingerprint(dataset, iterable=False)

    one, two = mapped(1), mapped(1)
    assert one._fingerprint != two._fingerprint
    assert identity(one) == identity(two)
    others = (
        mapped(2),
        one.shuffle(seed=0),
        one.select(range(99)),
        one.rename_column("id", "number"),
    )
    assert all(identity(other) != identity(one) for other in others)


def test_what_is_wrong_with_a_dataset_is_named():
    with open_reader(Source("s", Squares(30, bad=17), block=10, shuffle=False)) as reader:
        assert len(take(reader, 17)) == 17
        with pytest.raises(SampleError, match=r"s\[1\]\[7\] \(shard 1\).*OSError: disk"):
            take(reader, 30)
        assert take(reader, 1, 18)[0].sample["id"] == 18
    with pytest.raises(SampleError, match=r"s\[0\]\[0\].*no field 'x'; it has id"):
        take(open_reader(Source("s", Squares(3), columns=["x"], shuffle=False)), 1)
    with pytest.raises(ConfigurationError, match="source 's' has no samples"):
        open_reader(Source("s", Squares(0)))
    with pytest.raises(SampleError, match="source 's' yields nothing in pass 0"):
        take(open_reader(Source("s", Stream(0))), 1)
    with pytest.raises(ConfigurationError, match="iterable, and comes in its own order"):
        open_reader(Source("s", Stream(3), shuffle=True))
    with pytest.raises(ConfigurationError, match="used up by one pass"):
        open_reader(Source("s", numbers(3)))
    with pytest.raises(ConfigurationError, match="raised ZeroDivisionError"):
        open_reader(Source("s", lambda: 1 // 0))

    class Breaking(Stream):
        def __iter__(self):
            yield {"id": 0}
            raise OSError("net")

    with pytest.raises(SampleError, match=r"s\[0\]\[1\].*OSError: net"):
        take(open_reader(Source("s", Breaking(3))), 2)
