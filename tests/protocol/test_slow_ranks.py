"""A rank that is 5 % slower than its work explains is found within 200 steps; noise names none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from evenstep.protocol.slow_ranks import BLOCK, UNTIMED, WINDOW, SlowRank, SlowRanks, pace_of

ROUND = 4
"""Blocks of a round at most: `Even` plans from windows of some 96 groups."""
BEGINS = 210


@dataclass(frozen=True, kw_only=True)
class Job:
    """Times of steps as they are: noise, outliers, throttling of all ranks alike, long samples, and
    a cost that is 20 % wrong in what attention takes."""

    ranks: int
    seed: int
    noise: float = 0.03
    spread: float = 0.005
    """Of the cost within a step, as a logarithm: 0.005 under `Even`."""
    lengths: float = 0.0
    """Cost of the last rank over that of the others, as a logarithm."""
    constant: float = 0.0
    """Share of a step that does not depend on its cost."""
    share: float = 0.0
    """How much slower the first rank is from step `BEGINS` on."""

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """[ranks, steps] nanoseconds, and cost."""
        draw = np.random.default_rng(self.seed)
        size = self.ranks, BLOCK
        begin = 0
        while True:
            cost = np.exp(self.spread * draw.standard_normal(size, np.float32))
            cost[-1] *= np.exp(self.lengths)
            pairs = draw.standard_exponential(size, np.float32)  # of the cost: long-tailed
            attention = 0.2 * pairs / (1 + pairs)
            times = self.constant + (1 - self.constant) * cost * (1 + 0.2 * attention)
            times *= np.exp(self.noise * draw.standard_normal(size, np.float32))
            late = draw.random(size, np.float32) < 0.01
            times[late] *= 1 + 5 * draw.random(np.count_nonzero(late))
            times *= 1 + 0.2 * np.sin(begin / 300)
            times[0, max(BEGINS - begin, 0) :] *= 1 + self.share
            yield 1e8 * times, cost
            begin += BLOCK


def paces_of(block: int, times: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """`pace_of` of all ranks at once."""
    time = 1000 * np.log(times)
    rate = time - 1000 * np.log(costs)
    middle = np.median(rate, axis=1)
    noise = 1.86 * np.median(np.abs(rate - middle[:, None]), axis=1) / np.sqrt(WINDOW)
    columns = [np.full(len(time), block), np.median(time, axis=1), middle, np.ceil(noise)]
    return np.round(np.stack(columns, axis=1)).astype(np.int64)


def told(job: Job, steps: int) -> Iterator[tuple[int, tuple[SlowRank, ...] | None]]:
    """The step at which a round is planned, and the ranks named then."""
    ranks, begins = SlowRanks(), [(0, BLOCK * block) for block in range(steps // BLOCK + 1)]
    times = costs = np.empty((job.ranks, 0), np.float32)
    for number, (time, cost) in zip(range(1, steps // BLOCK + 1), job.blocks()):
        times, costs = (
            np.concatenate(each, axis=1)[:, -WINDOW:] for each in ((times, time), (costs, cost))
        )
        if number % ROUND == job.seed % ROUND and times.shape[1] == WINDOW:
            ranks.add(paces_of(number, times, costs), begins)
            yield number * BLOCK, ranks.slow


def test_the_pace_of_a_rank_is_that_of_its_last_steps() -> None:
    for (times, costs), _ in zip(Job(ranks=3, seed=1, noise=0.02).blocks(), range(1)):
        times, costs = np.repeat(times, 4, axis=1), np.repeat(costs, 4, axis=1)
        blocks = [
            np.stack([times[1], times[1] / costs[1]])[:, begin : begin + BLOCK]
            for begin in range(0, WINDOW, BLOCK)
        ]
        pace = pace_of(7, [blocks[0] * 2, *blocks])
        assert np.abs(np.array(pace) - paces_of(7, times, costs)[1]).max() <= 1
        assert pace_of(3, blocks[:3]) == (3, 0, 0, 0)
        assert pace_of(9, [*blocks, np.empty((2, 0))]) == (9, 0, 0, 0), "not timed"
        assert UNTIMED.time == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_a_rank_that_is_5_percent_slower_is_found_within_200_steps(ranks: int, seed: int) -> None:
    job = Job(ranks=ranks, seed=seed, share=0.05)
    found = [(at, slow) for at, slow in told(job, BEGINS + 400) if slow]
    (at, (slow,)) = found[0]
    assert BEGINS < at <= BEGINS + 190, "the rest is for steps that are prefetched"
    assert slow.rank == 0
    assert 0.03 <= slow.share <= 0.08
    assert abs(slow.step - BEGINS) <= 75
    assert all([each.rank for each in ranks] == [0] for _, ranks in found)
    assert {ranks[0].step for _, ranks in found} == {slow.step}, "it stays as it was named"


NOISES = {
    "even": Job(ranks=64, seed=1),
    "uneven": Job(ranks=64, seed=1, spread=0.3),
    "a rank with half as much again": Job(ranks=8, seed=1, lengths=0.4),
    "with little work, and much that is constant": Job(ranks=2, seed=1, lengths=-0.4, constant=0.5),
    "noisy": Job(ranks=2, seed=1, noise=0.2),
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_and_data_name_nobody(name: str) -> None:
    seen = [slow for _, slow in told(NOISES[name], 10_000)]
    assert len(seen) >= 95
    assert set(seen) == {()}


def test_a_slow_rank_is_named_until_it_clearly_is_not_and_not_by_what_was_told_before() -> None:
    ranks, begins = SlowRanks(), [(0, 25 * block) for block in range(10)] + [(1, 5)] * 3
    paces = np.tile(np.array([[5, 18_000, 9_000, 4]]), (4, 1))

    def tell(block: int, excess: int) -> list[tuple[int, int, int]]:
        paces[:, 0] = block
        paces[2, 1:3] = 18_000 + excess, 9_000 + excess
        ranks.add(paces, begins)
        assert ranks.slow is not None
        return [(each.rank, each.epoch, each.step) for each in ranks.slow]

    assert ranks.slow is None
    assert tell(5, 29) == []
    assert tell(6, 31) == [(2, 0, 75)]
    assert tell(6, 0) == [(2, 0, 75)], "nothing new"
    assert tell(7, 16) == [(2, 0, 75)]
    assert tell(8, 14) == []
    assert tell(16, 40) == [(2, 1, 5)]
    paces[:, 3] = 8
    assert tell(17, 47) == [(2, 1, 5)]
    assert tell(18, 10) == []
    assert tell(19, 47) == [], "noisier"
    paces[1:, 1] = 0
    before = ranks.slow
    ranks.add(paces + np.array([1, 0, 0, 0]), begins)
    assert ranks.slow == before, "nobody to compare with"
