"""Which samples a rank gets, in which order; and that a changed order is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from evenstep.errors import MismatchError
from evenstep.loader.resume.sample_order import (
    EpochShare,
    OrderChecksum,
    SamplerOrder,
    epoch_order,
    remaining_indices,
    sampler_order,
    sharded_order,
)
from evenstep.plan.epoch.remaining import Remaining
from evenstep.plan.epoch.stream import Progress, Stream

WORLDS = (1, 2, 3, 8)
COUNTS = (0, 1, 2, 7, 8, 9, 100)


def everything(share: EpochShare) -> list[Any]:
    return [index for _, index in remaining_indices(share, Remaining.everything(), OrderChecksum())]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_share_is_that_of_torchs_distributed_sampler(
    count: int, world_size: int, drop_last: bool, shuffle: bool
) -> None:
    dataset = range(count)
    for epoch in (0, 3):
        for rank in range(world_size):
            theirs = DistributedSampler(
                dataset, world_size, rank, shuffle=shuffle, seed=5, drop_last=drop_last
            )
            theirs.set_epoch(epoch)
            share = sharded_order(
                lambda epoch=epoch: epoch_order(dataset, shuffle=shuffle, seed=5, epoch=epoch),
                Stream(count),
                rank,
                world_size,
                drop_last=drop_last,
            )
            expected = list(theirs)
            assert everything(share) == expected
            assert share.size == len(expected)
            assert all(type(index) is int for index in everything(share))


@given(st.integers(0, 60), st.integers(1, 9), st.integers(0, 20), st.sets(st.integers(0, 19)))
def test_what_is_left_of_an_epoch_is_dealt_out_whole_and_without_repeats(
    count: int, world_size: int, tail: int, leftover: set[int]
) -> None:
    tail = min(tail, count)
    early = sorted(place for place in leftover if place < tail)
    stream = Stream(count, tail, np.array(early, np.int64))
    order = epoch_order(range(count), shuffle=True, seed=1, epoch=0)
    dealt = [
        everything(sharded_order(lambda: order, stream, rank, world_size, drop_last=False))
        for rank in range(world_size)
    ]
    expected = order[[*early, *range(tail, count)]].tolist()
    if stream.whole and count:
        assert len({len(share) for share in dealt}) == 1
        assert {index for share in dealt for index in share} == set(expected)
    else:
        assert sorted(index for share in dealt for index in share) == sorted(expected)
        assert dealt[0][:1] == expected[:1]


def test_long_shares_are_read_in_pieces_and_whole() -> None:
    count = 200_003
    order = np.arange(count)[::-1].copy()
    share = sharded_order(lambda: order, Stream(count), 1, 2, drop_last=True)
    assert everything(share) == list(range(count - 2, 0, -2))


class Sampler:
    """Yields names; has a length if asked to."""

    def __init__(self, names: list[Any]) -> None:
        self.names = names

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)


class SizedSampler(Sampler):
    def __len__(self) -> int:
        return len(self.names)


class UnsizedSampler(Sampler):
    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("sampler", "size"),
    [(SizedSampler(["a", "b"]), 2), (Sampler(["a", "b"]), None), (UnsizedSampler(["a"]), None)],
)
def test_a_samplers_share_is_what_it_yields(sampler: Sampler, size: int | None) -> None:
    share = SamplerOrder(sampler)
    assert share.size == size
    assert everything(share) == everything(share) == sampler.names


NAMES: list[Any] = [(f"shard {n % 3}", n) for n in range(40)]


def share_of(kind: str, names: list[Any]) -> EpochShare:
    if kind == "sampler":
        return SamplerOrder(SizedSampler(names))
    return sharded_order(
        lambda: sampler_order(SizedSampler(names), len(names)),
        Stream(len(names)),
        0,
        1,
        drop_last=False,
    )


@st.composite
def remains(draw: st.DrawFn) -> Remaining:
    leftover = sorted(draw(st.sets(st.integers(0, 15))))
    tail = draw(st.integers(leftover[-1] + 1 if leftover else 0, 20))
    taken = draw(st.integers(0, 20))
    unfinished = sorted(draw(st.sets(st.integers(0, taken - 1)))) if taken else []
    share = Stream(1 << 62, tail, np.array(leftover, np.int64))
    return Remaining.of(share, Progress(taken, np.array(unfinished, np.int64)))


CHECKED = st.sets(st.integers(0, 39), max_size=40)


def checksum_of(places: set[int], names: list[Any]) -> OrderChecksum:
    return OrderChecksum.of(places, [names[place] for place in places])


@pytest.mark.parametrize("kind", ["dealt", "sampler"])
@given(remaining=remains(), places=CHECKED)
def test_a_walk_gives_what_remains_with_its_arrival_numbers(
    kind: str, remaining: Remaining, places: set[int]
) -> None:
    places = {place for place in places if place < remaining.place}
    walked = list(remaining_indices(share_of(kind, NAMES), remaining, checksum_of(places, NAMES)))
    expected = [
        (number, NAMES[place])
        for number, place in zip(remaining.numbers.tolist(), remaining.places.tolist())
    ]
    expected += [
        (remaining.number + place - remaining.place, NAMES[place])
        for place in range(remaining.place, len(NAMES))
    ]
    assert walked == expected


@given(remaining=remains(), places=CHECKED, data=st.data())
def test_an_order_that_has_changed_is_refused(
    remaining: Remaining, places: set[int], data: st.DataObject
) -> None:
    places = {place for place in places if place < remaining.place}
    names = data.draw(st.permutations(NAMES))
    looked_at = sorted(places)[:32]
    same = all(names[place] == NAMES[place] for place in looked_at)
    walked = remaining_indices(share_of("sampler", names), remaining, checksum_of(places, NAMES))
    if same:
        list(walked)
        return
    with pytest.raises(MismatchError, match=r"another order .*function of \(seed, epoch\)"):
        list(walked)


@pytest.mark.parametrize("names", [[5, 2, 9], ["a", "b"], [(1, 2), (3, 4)], [[1], [2, 3]], []])
def test_a_samplers_order_keeps_indices_of_any_kind(names: list[Any]) -> None:
    order = sampler_order(names, len(names))
    assert order.tolist() == names
    with pytest.raises(MismatchError, match=rf"yields {len(names)} indices .* is 4"):
        sampler_order(names, 4)
