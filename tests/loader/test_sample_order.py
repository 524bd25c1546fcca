"""Which samples a rank gets, and in which order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from evenstep.loader.resume.sample_order import (
    EpochShare,
    OrderChecksum,
    SamplerOrder,
    epoch_order,
    remaining_indices,
    sharded_order,
)
from evenstep.plan.epoch import Remaining, Stream

WORLDS = (1, 2, 3, 8)
COUNTS = (0, 1, 2, 7, 8, 9, 100)


def everything(share: EpochShare) -> list[Any]:
    return [index for _, index in remaining_indices(share, Remaining.everything(), OrderChecksum())]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_share_is_that_of_torchs_distributed_sampler(drop_last: bool, shuffle: bool) -> None:
    places = [(world_size, rank) for world_size in WORLDS for rank in range(world_size)]
    for count, epoch, (world_size, rank) in itertools.product(COUNTS, (0, 3), places):
        dataset = range(count)
        theirs = DistributedSampler(
            dataset, world_size, rank, shuffle=shuffle, seed=5, drop_last=drop_last
        )
        theirs.set_epoch(epoch)
        order = partial(epoch_order, dataset, shuffle=shuffle, seed=5, epoch=epoch)
        share = sharded_order(order, Stream(count), rank, world_size, drop_last=drop_last)
        expected = list(theirs)
        assert everything(share) == expected
        assert share.size == len(expected)
        assert all(type(index) is int for index in everything(share))


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
