"""`PoolSort`: ranks that train on like lengths at like times, without exchanging any.

Shards of one data set have like lengths. So if all ranks sort equally many samples, the i-th of
each is about as long; and an order drawn from the common seed keeps them together (the
method of LengthPoolSortDataset). A round of it:

1. The window is the pool. It is sorted by length.
2. All ranks cut theirs into the same number of steps, by rank order: step i covers the same
   quantiles on all, also where they hold different numbers of samples.
3. The steps are shuffled, alike on all ranks, so their order says nothing about length.

The imbalance that is left is how far one rank's quantile is from another's. It shrinks with the
pool and grows with the number of ranks, as the largest of many deviations counts. `Even` has no
such term.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given, check_one_of
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.spread import spread
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

SHUFFLES = ("batches", "samples", "none")


@dataclass(frozen=True)
class PoolSort(Policy):
    """Batches of `batch_size` samples, of like length on all ranks in every step.

    A pool is a whole number of batches, so all are full until a rank runs out. Then ranks with
    fewer samples than the others make smaller batches, and those with more than fit keep the
    youngest.
    """

    batch_size: int
    pool_size: int | None = field(default=None, kw_only=True)
    """Samples that are sorted together; by default as many as may be buffered. Larger pools align
    ranks better, and the first batch comes later. Rounded down to whole batches."""
    ascending: bool = field(default=True, kw_only=True)
    """Sort the shortest first; matters where steps are not shuffled."""
    shuffle: str = field(default="batches", kw_only=True)
    """"batches" shuffles whole steps, so that a batch holds samples of like length and little
    padding. "samples" does what LengthPoolSortDataset does: it shuffles samples, so a batch of
    several mixes lengths, alike on all ranks. For batches of one both are the same. "none" trains
    on each pool from one end to the other."""
    initial_pool_size: int | None = field(default=None, kw_only=True)
    """The first pool of each epoch, so that its first batch comes soon; see `warmup_rounds`."""
    warmup_rounds: int = field(default=0, kw_only=True)
    """Rounds over which the pool grows from `initial_pool_size`, by equal amounts."""
    spread: bool = field(default=False, kw_only=True)
    """Gives each update of k steps (``DataLoader(accumulate=k)``) steps that are evenly spaced in
    length, so that its gradient is of short, middle and long samples. Without accumulation there is
    nothing to spread: batches of equally many samples cost the same only if they are equally long.
    Needs `shuffle` "batches". False is the paper."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)
    packed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_given(batch_size=self.batch_size)
        check_at_least(1, batch_size=self.batch_size, pool_size=self.pool_size)
        if self.pool_size is not None and self.pool_size < self.batch_size:
            raise ConfigurationError(
                f"pool_size={self.pool_size} must be at least batch_size={self.batch_size}, and "
                "10 to 100 times as much to be of use"
            )
        check_one_of(SHUFFLES, shuffle=self.shuffle)
        if self.spread and self.shuffle != "batches":
            raise ConfigurationError(
                f"spread=True with shuffle={self.shuffle!r}: only whole batches are spread over an "
                "update; use shuffle='batches', or spread=False"
            )
        check_warm_up(self.initial_pool_size, self.pool_size, warmup_rounds=self.warmup_rounds)

    @property
    def looks_ahead(self) -> bool:
        # Pools of one size that are not whole batches pad more than a small last one misaligns.
        return False

    def window_size(self, buffer_size: int) -> int:
        return self._whole(self.pool_size or buffer_size)

    def window_size_at(self, buffer_size: int, round: int) -> int:
        full = self.window_size(buffer_size)
        return self._whole(warm_up_size(self.initial_pool_size, full, round, self.warmup_rounds))

    def _whole(self, samples: int) -> int:
        return max(samples // self.batch_size, 1) * self.batch_size

    def propose(self, window: Window) -> Proposal:
        # Steps are known only when all ranks have said how many samples they have.
        pool = Groups.of([np.arange(len(window), dtype=np.int64)])
        return Proposal(np.array([len(window)], np.int64), pool, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        samples = messages[messages[:, 0] > 0, 0]
        steps = min(-(-int(samples.max()) // self.batch_size), int(samples.min()))
        lengths = window.lengths[: steps * self.batch_size]
        by_length = np.argsort(lengths if self.ascending else -lengths, kind="stable")
        cuts = np.arange(steps + 1, dtype=np.int64) * len(lengths) // steps
        groups = Groups(by_length, cuts)
        if self.shuffle == "none":
            return Plan(groups)
        draw = generator(window.seed, window.epoch, window.round, RandomStream.POOL_SORT_ORDER)
        if self.shuffle == "batches":
            return Plan(groups.take(self._order(window, steps, draw)))
        slots = draw.permutation(steps * self.batch_size).reshape(steps, self.batch_size)
        return Plan(Groups(by_length[_occupied(slots, groups.sizes)], cuts))

    def _order(self, window: Window, steps: int, draw: np.random.Generator) -> Int64Array:
        """[steps] the group that is emitted at each place, the same on all ranks."""
        if not self.spread:
            return draw.permutation(steps)
        from_longest = -np.arange(steps, dtype=np.float64)  # or shortest: groups are in order
        one_class = [np.arange(steps, dtype=np.int64)]
        return spread(
            from_longest,
            one_class,
            rank=0,  # every rank in the same order, as groups of other lengths cost otherwise
            ranks=1,
            accumulate=window.accumulate,
            step=window.step,
            draw=draw,
        )


def _occupied(slots: Int64Array, sizes: Int64Array) -> Int64Array:
    """Deals sorted samples out to steps of shuffled slots, some of which may stay empty.

    Args:
        slots: [steps, batch_size] a permutation of all positions in a full, sorted pool.
        sizes: [steps] slots of each step that are taken.

    Returns:
        [samples] the sorted sample in each slot taken, step after step: the n-th sample is in the
        n-th of the slots taken. Slots 3 0 | 2 1 of which 2 and 1 are taken hold samples 2 0 | 1.
    """
    taken = slots[np.arange(slots.shape[1]) < sizes[:, None]]
    ranks = np.empty(len(taken), np.int64)
    ranks[np.argsort(taken)] = np.arange(len(taken))
    return ranks


def warm_up_size(initial: int | None, full: int, number: int, over: int) -> int:
    """Size of pool `number`, counted from 0, while it grows from `initial` to `full`."""
    if initial is None or number >= over:
        return full
    first = min(initial, full)
    return first + (full - first) * number // over


def check_warm_up(initial: int | None, full: int | None, **over: int) -> None:
    """Raises `ConfigurationError` for a warm-up with only one of its two options.

    Args:
        over: number of pools that the warm-up takes, under the name of the option.
    """
    check_given(**over)
    check_at_least(0, **over)
    check_at_least(1, initial_pool_size=initial)
    ((name, count),) = over.items()
    if (initial is None) != (count == 0):
        raise ConfigurationError(
            f"initial_pool_size={initial} with {name}={count}: a warm-up needs both"
        )
    if initial is not None and full is not None and initial > full:
        raise ConfigurationError(f"initial_pool_size={initial} must be at most pool_size={full}")
