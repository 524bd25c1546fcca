"""A rank's share of an epoch that its policy planned offline, from all lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.loader.batcher.spec import ExpectedSamples
from evenstep.plan.epoch.stream import Stream
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policy import Policy


@dataclass(frozen=True)
class PlannedShare:
    """An `EpochShare` whose groups are known."""

    groups: Groups
    """Groups of dataset indices, in the order in which they are trained on."""
    lengths: Int64Array
    """[dataset] tokens of every sample."""

    @property
    def size(self) -> int:
        return len(self.groups.members)

    def read(self, places: Int64Array, begin: int) -> tuple[dict[int, Any], Iterator[Any]]:
        members = self.groups.members
        found = dict(zip(places.tolist(), members[places].tolist()))
        return found, iter(members[begin:].tolist())

    def expected(self, left: Stream) -> ExpectedSamples:
        """
        Args:
            left: the places of this share that arrival numbers count.
        """
        members = self.groups.members
        places = np.concatenate([left.leftover, np.arange(left.tail, len(members))])
        ends = left.count_below(self.groups.offsets[1:])
        return ExpectedSamples(ends, self.lengths[members[places]])


def check_planned(
    policy: Policy, dataset: Any, *, iterable: bool, sampler: Any, shuffle: bool, drop_last: bool
) -> None:
    """
    Raises:
        ConfigurationError: `policy` plans offline, and an argument contradicts that.
    """
    lengths = policy.lengths
    if lengths is None:
        return
    name = type(policy).__name__
    if iterable:
        raise ConfigurationError(
            f"{name} plans an epoch by dataset index, and an iterable dataset has none; use a "
            "map-style dataset, or an online policy such as evenstep.Even"
        )
    for argument, given in (("sampler", sampler), ("shuffle", shuffle), ("drop_last", drop_last)):
        if given:
            raise ConfigurationError(
                f"{argument}={given!r} contradicts {name}, which decides the order of the whole "
                f"epoch and which samples are in it; leave {argument} out"
            )
    if len(dataset) != len(lengths):
        raise ConfigurationError(
            f"{name} was given the lengths of {len(lengths):,} samples, and the dataset has "
            f"{len(dataset):,}; count them again: evenstep lengths"
        )
