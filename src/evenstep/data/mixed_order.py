"""`MixtureOrder`: the samples of every epoch of a `Mixture` of map-style datasets, in order."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.mixed import Mixture
from evenstep.data.shard_order import ShardOrder
from evenstep.errors import MismatchError
from evenstep.mixture.mixture_options import REPEAT
from evenstep.mixture.sample_table import SampleTable
from evenstep.mixture.state import MixtureState

_PASSES = 1 << 20
"""More than a dataset is read in an epoch in which it begins again."""


class MixtureOrder:
    """An epoch's order is a function of seed, epoch, the mixture and, under a `FeedbackSchedule`,
    of what was reported before the epoch. Epochs are drawn one after the other; a state has where
    its epoch begins, so that none before it is drawn again."""

    def __init__(self, mixture: Mixture, *, seed: int, shuffle: bool) -> None:
        """
        Args:
            shuffle: shuffle each dataset, anew for each pass over it.
        """
        self._mixture, self._seed = mixture, seed
        self._orders = [
            ShardOrder([size], seed=seed, name=name, shuffle_samples=shuffle)
            for name, size in mixture.sizes.items()
        ]
        self._begins: dict[int, MixtureState] = {}
        self._ends: dict[int, MixtureState] = {}
        self._drawn: tuple[int, Int64Array] | None = None
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def indices(self) -> Int64Array:
        """[draws] dataset indices of the epoch."""
        epoch = self._epoch
        if self._drawn is None or self._drawn[0] != epoch:
            # Those before it that are not known, too: this one may continue them.
            first = max((one for one in self._ends if one < epoch), default=-1) + 1
            for one in range(epoch if epoch in self._begins else first, epoch + 1):
                self._drawn = one, self._draw(one)
        assert self._drawn is not None
        return self._drawn[1]

    def _begin(self, epoch: int) -> MixtureState:
        if epoch not in self._begins:
            names, signals = self._mixture.names, self._mixture.signals
            state = self._ends[epoch - 1] if epoch else MixtureState.fresh(names)
            self._begins[epoch] = state.with_signals({**state.signals, **signals})
        return self._begins[epoch]

    def _draw(self, epoch: int) -> Int64Array:
        mixture, state = self._mixture, self._begin(epoch)
        left, mixer = mixture.samples_per_epoch, mixture.mixer(self._seed)
        mixer.load_state_dict(mixer.state_dict(state))
        provider = _Known(mixture, self._orders, 0 if mixture.stop == REPEAT else epoch * _PASSES)
        parts = [np.empty(0, np.int64)]
        while not mixer.ended and left != 0:
            if left is not None and left < mixture.samples_per_step:
                mixer = mixer.with_samples(left)
            table = mixer.draw(mixer.step, provider)
            parts.append(mixture.index_of(table.source, table.index))
            left = None if left is None else left - len(table)
        end = mixer.state
        if mixture.stop != REPEAT:
            fresh = MixtureState.fresh(mixture.names)
            end = replace(fresh, step=end.step, weights=end.weights, signals=end.signals)
        self._ends[epoch] = end
        return np.concatenate(parts)

    # State

    def state_dict(self, epoch: int) -> dict[str, Any]:
        """Where an epoch begins, and a checksum of its order."""
        self.set_epoch(epoch)
        order = zlib.crc32(self.indices.tobytes())
        begin = self._mixture.mixer(self._seed).state_dict(self._begins[epoch])
        return {"begin": begin, "order": order, "signals": self._mixture.signals}

    def load_state_dict(self, epoch: int, state: Mapping[str, Any], *, begun: bool) -> None:
        """
        Args:
            begun: samples of the epoch have been trained on, so its order may not change.

        Raises:
            MismatchError: it has changed, or the state is of another mixture.
        """
        mixture = self._mixture
        mixer = mixture.mixer(self._seed)
        mixer.load_state_dict(state["begin"])
        self._begins, self._ends, self._drawn = {epoch: mixer.state}, {}, None
        self.set_epoch(epoch)
        mixture.signals = dict(state["signals"])
        if begun and zlib.crc32(self.indices.tobytes()) != state["order"]:
            raise MismatchError(
                f"the mixture draws other samples in epoch {epoch} than when the state was saved "
                "in the middle of it, so some would be lost; resume with the same datasets, "
                "weights and rule, and change them between epochs"
            )


class _Known:
    """`Metadata` of datasets that are read by index."""

    def __init__(self, mixture: Mixture, orders: list[ShardOrder], first_pass: int) -> None:
        self._mixture, self._orders, self._first_pass = mixture, orders, first_pass

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        order, names = self._orders[source], self._mixture.names
        parts, index = order.parts(self._first_pass * order.size + position), np.empty(0, np.int64)
        while len(index) < count:
            index = np.concatenate([index, next(parts).indices[: count - len(index)]])
        lengths = self._mixture.lengths.get(names[source])
        return SampleTable(
            sources=names,
            source=np.full(count, source, np.int32),
            position=np.arange(position, position + count),
            shard=np.zeros(count, np.int32),
            index=index,
            lengths={} if lengths is None else {"text": lengths[index]},
        )
