"""`PoolSortDataset`: pool sort as a dataset, for loaders other than evenstep's.

Samples gather in a pool, are sorted, and come in an order that is a function of (seed, epoch,
number of the pool) alone. So on all ranks and workers with equally large pools, like samples come
at like times. `evenstep.PoolSort` does the same behind the workers, with one pool for all of them;
prefer it if evenstep loads the data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset

from evenstep.data.pool_pass import PoolPass, sample_key
from evenstep.data.resumable import ResumableIterable
from evenstep.errors import ConfigurationError, MismatchError, parsing
from evenstep.plan.argument_checks import check_at_least, check_given, check_one_of
from evenstep.plan.policies.pool_sort import check_warm_up, warm_up_size
from evenstep.plan.schema import COUNT, check_schema, require

ORDERS = ("evenstep", "reference")

_VERSION = 2
_PASS = {
    "epoch": COUNT,
    "pool": COUNT,
    "given": COUNT,
    "ended": bool,
    "upstream": ({"of": str, "count": COUNT, "state": object}, None),
}


class PoolSortDataset(IterableDataset):  # type: ignore[type-arg]
    """Yields the samples of another dataset in an order that gives ranks like lengths at once.

    Ranks stay aligned if they have equally many workers, each with a share of one dataset: pool k
    of worker w then has the same size and the same permutation on all of them. A worker holds one
    pool in memory.

    A pass can be resumed exactly, by ``state_dict`` and ``load_state_dict`` of this dataset or of
    its iterator, or by the methods of a Megatron-Energon ``SavableDataset``. The state holds the
    wrapped dataset's position at the beginning of the pool and how many samples of the pool were
    yielded, never a sample: on resume, the pool is filled again. The wrapped dataset must then
    yield the same samples (see `ResumableIterable`).
    """

    def __init__(
        self,
        dataset: Any,
        pool_size: int,
        key_fn: Callable[[Any], float] | None = None,
        ascending: bool = True,
        seed: int = 0,
        initial_pool_size: int | None = None,
        warmup_pools: int = 0,
        *,
        shuffle: bool = True,
        order: str = "evenstep",
    ) -> None:
        """
        Args:
            dataset: this rank's samples: an iterable dataset or a torch DataLoader over samples,
                which divides them among workers itself; a function that returns an iterator; or a
                map-style dataset, read in order, of which each of n workers takes every n-th.
            pool_size: samples that are sorted together; 10 to 100 batches. 0 leaves all as it is.
            key_fn: from a sample to the number that is sorted by; `sample_key` by default.
            ascending: smallest first; matters if `shuffle` is False.
            seed: the same on all ranks.
            initial_pool_size: samples of the first pool, so that its first sample comes soon.
            warmup_pools: pools over which the size grows from it to `pool_size`, by equal amounts.
            shuffle: False yields each pool from one end to the other.
            order: "reference" shuffles as LengthPoolSortDataset of LLaVA-OneVision-2 does, sample
                for sample, so that a run can continue from there: `seed` is then its `shuffle_seed`
                and decides the order of the last, smaller pool only, and epochs count from 0.

        Raises:
            ConfigurationError: an argument is out of range, or `dataset` can be read only once.
        """
        check_given(pool_size=pool_size, seed=seed)
        check_at_least(0, pool_size=pool_size)
        check_one_of(ORDERS, order=order)
        check_warm_up(initial_pool_size, pool_size, warmup_pools=warmup_pools)
        if key_fn is not None and not callable(key_fn):
            raise ConfigurationError(
                f"key_fn={key_fn!r} must be a function from a sample to a number, or None"
            )
        self.dataset = dataset
        self.pool_size = pool_size
        self.key_fn = key_fn
        self.ascending = ascending
        self.seed = seed
        self.initial_pool_size = initial_pool_size
        self.warmup_pools = warmup_pools
        self.shuffle = shuffle
        self.order = order
        self.epoch = 0
        self._iterable = ResumableIterable(dataset)
        self._loaded: Mapping[str, Any] | None = None
        self._pass: PoolPass | None = None
        if (energon := sys.modules.get("megatron.energon")) is not None:
            # Its wrappers take anything but a `SavableDataset` for a list of datasets.
            energon.SavableDataset.register(type(self))

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch's permutations, here and in the wrapped dataset. Call it before a pass,
        and in every worker: persistent workers have a copy each."""
        check_given(epoch=epoch)
        check_at_least(0, epoch=epoch)
        self.epoch = epoch
        if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        """A pass from the beginning, or the rest of one after `load_state_dict`."""
        self._pass = PoolPass(self, self._iterable)
        if self._loaded is not None:
            self._pass.resume(self._loaded)
            self._loaded = None
        return self._pass

    def __len__(self) -> int:
        """Samples of a pass; TypeError if the wrapped dataset does not know."""
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None}  # which may hold open files

    def size_of(self, pool: int) -> int:
        """Samples of pool number `pool` of a pass, counted from 0."""
        if not self.pool_size:
            return 1
        return warm_up_size(self.initial_pool_size, self.pool_size, pool, self.warmup_pools)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Position in the pass started last; of the beginning, before the first."""
        if self._pass is not None:
            return self._pass.state_dict()
        return self.envelope(self._loaded)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass yield what would have come after `state` was saved.

        Raises:
            MismatchError: the state is of other pools, or not of a `PoolSortDataset`.
        """
        self._loaded, self._pass = self.opened(state), None

    def envelope(self, inner: Mapping[str, Any] | None) -> dict[str, Any]:
        """A state around that of a pass; None for the beginning."""
        return {"version": _VERSION, "pools": self._pools(), "pass": inner}

    def opened(self, state: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The state of the pass in an `envelope`, after a check of all."""
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != _VERSION:
            raise MismatchError(
                f"not a state of PoolSortDataset that this version reads: version={version!r} must "
                f"be {_VERSION}"
            )
        remedy = "load it as state_dict() returned it"
        with parsing("the state of a PoolSortDataset", remedy=remedy, error=MismatchError):
            check_schema(state, {"pools": Mapping, "pass": (_PASS, None)})
            for name, value in self._pools().items():
                if state["pools"].get(name) != value:
                    raise MismatchError(
                        f"the state was saved with {name}={state['pools'].get(name)!r}, and this "
                        f"dataset has {value!r}, so its pools would differ; pass the same value"
                    )
            inner: Mapping[str, Any] | None = state["pass"]
            if inner is not None:
                pool, point = inner["pool"], inner["upstream"]
                require(inner["given"] <= self.size_of(pool), "pass.given", inner["given"])
                count = point["count"] if point is not None else 0
                require(count == self.samples_before(pool), "pass.upstream.count", count)
        return inner

    def samples_before(self, pool: int) -> int:
        """Samples of all pools of a pass before number `pool`."""
        warm = min(pool, self.warmup_pools)
        return sum(map(self.size_of, range(warm))) + (pool - warm) * max(self.pool_size, 1)

    def _pools(self) -> dict[str, Any]:
        return {
            "pool_size": int(self.pool_size),
            "ascending": bool(self.ascending),
            "seed": int(self.seed),
            "initial_pool_size": self.initial_pool_size,
            "warmup_pools": int(self.warmup_pools),
            "shuffle": bool(self.shuffle),
            "order": self.order,
        }

    # The methods of a Megatron-Energon `SavableDataset`, which its loaders call in place of the two
    # above. What concerns the samples is answered by the wrapped dataset.

    @property
    def worker_config(self) -> Any:
        return self.dataset.worker_config

    def save_state(self) -> dict[str, Any]:
        return {"__class__": type(self).__name__, **self.state_dict()}

    def restore_state(self, state: Mapping[str, Any] | None) -> None:
        """None is the beginning."""
        if state is None:
            self.reset_state_own()
        else:
            self.load_state_dict(state)

    def reset_state_own(self) -> None:
        """Returns to the beginning, with the wrapped dataset, which Energon does not see."""
        self._loaded = self._pass = None
        self._iterable.rewinder.reset()

    def reset_state_deep(self) -> None:
        self.reset_state_own()

    def worker_has_samples(self) -> bool:
        return bool(self.dataset.worker_has_samples())

    def len_worker(self, worker_idx: int | None = None) -> int:
        return int(self.dataset.len_worker(worker_idx))

    def len_rank(self) -> int:
        return int(self.dataset.len_rank())

    def can_restore_sample(self) -> bool:
        return bool(self.dataset.can_restore_sample())

    def assert_can_restore(self) -> None:
        self.dataset.assert_can_restore()

    def restore_sample(self, restore_key: Any) -> Any:
        return self.dataset.restore_sample(restore_key)

    def config(self) -> dict[str, Any]:
        """Describes the dataset, without its samples."""
        inner = getattr(self.dataset, "config", None)
        key_fn = self.key_fn or sample_key
        return {
            "type": type(self).__qualname__,
            "dataset": inner() if callable(inner) else type(self.dataset).__qualname__,
            "key_fn": getattr(key_fn, "__qualname__", type(key_fn).__qualname__),
            **self._pools(),
        }
