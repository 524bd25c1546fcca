"""Which pool for pool sort, what it costs, and how long ranks wait for each other without it.

Ranks that sort a pool have like lengths at like places, the nearer the larger the pool. A larger
one also takes longer to fill before the first batch, and holds more samples. Imbalance is
simulated; time and memory are products of what a sample takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.rng import RandomStream, generator
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.simulate.run import simulate

WORKERS = (1, 2, 4, 8)
_POOLS = (100, 1000, 10_000)
_POOLS_SIMULATED = 3
_SAMPLES_SIMULATED = 2_000_000  # of all ranks, at most: some seconds
_NEAR = 0.02
"""Of the time: a pool that leaves so much more waiting than the best is as good."""
_TOKEN_BYTES = 16  # input_ids and labels


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """One pool size, simulated."""

    pool_size: int
    imbalance: float
    padding: float

    @property
    def waits(self) -> float:
        """Share of the time that a mean rank waits for the others."""
        return 1 - 1 / self.imbalance


@dataclass(frozen=True, kw_only=True)
class PoolAdvice:
    """What `evenstep advise --pool-sort` says."""

    name: str
    """Of the data."""
    cv: float
    """Standard deviation of the lengths over their mean."""
    world_size: int
    batch_size: int
    unsorted: PoolFigures
    """Batches in order of arrival: a pool of 0."""
    pools: Sequence[PoolFigures]
    sample_bytes: float
    sample_seconds: float | None
    """To prepare a sample in one worker; None if it is not known."""

    @property
    def recommended(self) -> PoolFigures:
        """The smallest pool of at least 10 batches that is nearly as good as the best."""
        least = min(pool.waits for pool in self.pools)
        good = [pool for pool in self.pools if pool.waits <= least + _NEAR]
        large = [pool for pool in good if pool.pool_size >= 10 * self.batch_size]
        return min(large or good, key=lambda pool: pool.pool_size)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What each pool costs a rank, by number of workers. With ``own_pools`` each worker has a
        pool, as with `PoolSortDataset`; else all fill one.

        ``first_batch_samples`` are those that each worker prepares before the first batch, and
        ``memory`` the bytes of the samples in all pools.
        """
        rows = []
        for pool in self.pools:
            for workers in WORKERS:
                for own in (False, True):
                    samples = pool.pool_size if own else pool.pool_size / workers
                    seconds = self.sample_seconds
                    rows.append(
                        {
                            "pool_size": pool.pool_size,
                            "workers": workers,
                            "own_pools": own,
                            "imbalance": pool.imbalance,
                            "waits": pool.waits,
                            "padding": pool.padding,
                            "first_batch_samples": samples,
                            "first_batch_seconds": None if seconds is None else seconds * samples,
                            "memory": pool.pool_size * self.sample_bytes * (workers if own else 1),
                        }
                    )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; times in seconds, or None."""
        return {
            "data": self.name,
            "cv": self.cv,
            "world_size": self.world_size,
            "batch_size": self.batch_size,
            "unsorted": {"imbalance": self.unsorted.imbalance, "waits": self.unsorted.waits},
            "recommended_pool_size": self.recommended.pool_size,
            "pools": self.rows,
        }


def advise_pool_size(
    length_sample: LengthSample,
    *,
    world_size: int,
    batch_size: int = 1,
    cost: Cost | None = None,
    sample_seconds: float | None = None,
    sample_bytes: float | None = None,
    seed: int = 0,
) -> PoolAdvice:
    """Simulates pools of several sizes over the lengths.

    Args:
        sample_bytes: of a prepared sample; None takes token ids and labels of the mean length.
    """
    check_at_least(1, world_size=world_size, batch_size=batch_size)
    lengths, total = length_sample.lengths, length_sample.total
    share = None if total is None else max(total // world_size, batch_size)
    sizes = {*_POOLS, 10 * batch_size, 100 * batch_size} | ({share} if share is not None else set())
    fitting = sorted(size for size in sizes if batch_size <= size <= (share or size))
    random = generator(seed, RandomStream.ADVICE_BOOTSTRAP)

    def figures(policy: FixedBatch | PoolSort, pool_size: int) -> PoolFigures:
        count = max(pool_size, 100 * batch_size)
        count *= max(1, min(_POOLS_SIMULATED, _SAMPLES_SIMULATED // (world_size * count)))
        shards: list[Int64Array] = [random.choice(lengths, count) for _ in range(world_size)]
        result = simulate(policy, shards, buffer_size=max(pool_size, 1000), seed=seed, cost=cost)
        return PoolFigures(pool_size=pool_size, imbalance=result.imbalance, padding=result.padding)

    pools = [figures(PoolSort(batch_size, pool_size=size), size) for size in fitting]
    mean = float(lengths.mean())
    return PoolAdvice(
        name=length_sample.name,
        cv=float(np.std(lengths)) / mean,
        world_size=world_size,
        batch_size=batch_size,
        unsorted=figures(FixedBatch(batch_size), 0),
        pools=pools,
        sample_bytes=_TOKEN_BYTES * mean if sample_bytes is None else sample_bytes,
        sample_seconds=sample_seconds,
    )
