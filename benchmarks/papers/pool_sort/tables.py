"""Tables of the guide to LengthPoolSortDataset: sort and shuffle, pool sizes, workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.papers.outcome import Outcome, Table
from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan import FixedBatch, PoolSort, Window
from evenstep.tools.simulate import deal, sample_lengths, simulate

LENGTHS, RANKS, SAMPLES, POOL = "sharegpt4o", 8, 32_768, 1024
POOLS = (16, 100, 1000, 4096)


def _shards(seed: int) -> list[Int64Array]:
    lengths = sample_lengths(LENGTHS, SAMPLES, seed)
    return [lengths[share] for share in deal(SAMPLES, RANKS, seed)]


def _times(costs: Float64Array) -> tuple[float, float, float]:
    """Imbalance; the standard deviation of a step's time, over the mean cost of a sample; and the
    time of the last tenth of a pool over that of the first. A step takes as long as its longest
    rank."""
    steps = costs.max(axis=1)
    whole = steps[: len(steps) // POOL * POOL].reshape(-1, POOL)
    tenth = POOL // 10
    drift = float(whole[:, -tenth:].mean() / whole[:, :tenth].mean())
    return float(steps.sum() / costs.mean(axis=1).sum()), float(steps.std() / costs.mean()), drift


class Unshuffled(PoolSort):
    """Trains on each pool from its shortest samples to its longest."""

    def _order(self, window: Window, steps: int, draw: np.random.Generator) -> Int64Array:
        return np.arange(steps, dtype=np.int64)


def sort_and_shuffle(seed: int) -> Outcome:
    shards = _shards(seed)
    found = {
        "sort only": Unshuffled(1, pool_size=POOL),
        "sort and shuffle": PoolSort(1, pool_size=POOL),
        "neither": FixedBatch(1),
    }
    rows = []
    for name, policy in found.items():
        result = simulate(policy, shards, buffer_size=POOL, seed=seed)
        imbalance, spread, drift = _times(result.costs)
        row = [name, f"{imbalance:.3f}", f"{1 - 1 / imbalance:.1%}", f"{spread:.2f}"]
        rows.append([*row, f"{drift:.1f}"])
    columns = ["", "imbalance", "waits", "deviation of step times", "last tenth of a pool / first"]
    return Outcome(
        [Table(columns, rows)],
        "both are needed",
        f"waits {', '.join(row[2] for row in rows)}; drift {', '.join(row[4] for row in rows)}",
    )


def pool_sizes(seed: int) -> Outcome:
    shards, rows = _shards(seed), []
    said = {16: "", 100: "poor", 1000: "good", 4096: "perfect"}
    for pool in POOLS:
        result = simulate(PoolSort(1, pool_size=pool), shards, buffer_size=pool, seed=seed)
        whole = "" if pool < len(shards[0]) else ", all that a rank has"
        row = [f"{pool:,}{whole}", said[pool], f"{result.imbalance:.3f}"]
        rows.append([*row, f"{1 - 1 / result.imbalance:.1%}", f"{pool:,}"])
    columns = ["pool", "the guide: precision", "imbalance", "waits", "samples before the first"]
    return Outcome(
        [Table(columns, rows)],
        "1,000 to 10,000",
        f"waits {rows[1][3]} at 100, {rows[2][3]} at 1,000, {rows[3][3]} at 4,096",
    )


class Shard(IterableDataset[dict[str, Any]]):
    """What a worker of a rank gives: every n-th sample of the rank's, in pools that are sorted, and
    shuffled alike in all workers of all ranks."""

    def __init__(self, lengths: Int64Array, pool: int, seed: int) -> None:
        self.lengths, self.pool, self.seed = lengths, pool, seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        step, first = (worker.num_workers, worker.id) if worker else (1, 0)
        own = self.lengths[first::step]
        for number in range(-(-len(own) // self.pool)):
            held = np.sort(own[number * self.pool :][: self.pool])
            order = np.random.default_rng((self.seed, number)).permutation(len(held))
            yield from ({"length": length} for length in held[order].tolist())


def workers(seed: int) -> Outcome:
    shards, rows = [shard[:2048] for shard in _shards(seed)[:4]], []
    for count in (0, 1, 2, 4):
        for pool in dict.fromkeys([512, 512 // max(count, 1)]):
            costs = np.stack([_order(shard, pool, count, seed) for shard in shards], axis=1)
            imbalance = float(costs.max(axis=1).sum() / costs.mean(axis=1).sum())
            rows.append([f"{count}", f"{pool}", f"{pool * max(count, 1):,}", f"{imbalance:.3f}"])
    columns = ["`num_workers`", "pool of a worker", "samples held by a rank", "imbalance"]
    same = [row[3] for row in rows if row[1] == "512"]
    return Outcome(
        [Table(columns, rows)], "diluted", f"{min(same)} to {max(same)}; {rows[-1][3]} if shared"
    )


def _order(lengths: Int64Array, pool: int, count: int, seed: int) -> Float64Array:
    """[samples] lengths of a rank as its trainer gets them, from torch's DataLoader."""
    loader: Any = DataLoader(Shard(lengths, pool, seed), batch_size=None, num_workers=count)
    return np.array([sample["length"] for sample in loader], np.float64)
