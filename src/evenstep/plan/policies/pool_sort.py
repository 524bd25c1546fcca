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
from evenstep.plan.groups import Groups, spread
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, check_given


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
    spread: bool = field(default=False, kw_only=True)
    """Gives each update of k steps (``DataLoader(accumulate=k)``) steps that are evenly spaced in
    length, so that its gradient is of short, middle and long samples. Without accumulation there is
    nothing to spread: batches of equally many samples cost the same only if they are equally long.
    False is the paper."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)
    packed: bool = field(default=False, kw_only=True)

    # Pools of one size that are not whole batches pad more than a small last one misaligns.
    looks_ahead = False

    def __post_init__(self) -> None:
        check_given(batch_size=self.batch_size)
        check_at_least(1, batch_size=self.batch_size, pool_size=self.pool_size)
        if self.pool_size is not None and self.pool_size < self.batch_size:
            raise ConfigurationError(
                f"pool_size={self.pool_size} must be at least batch_size={self.batch_size}, and "
                "10 to 100 times as much to be of use"
            )

    def window_size(self, buffer_size: int) -> int:
        return max((self.pool_size or buffer_size) // self.batch_size, 1) * self.batch_size

    def propose(self, window: Window) -> Proposal:
        # Steps are known only when all ranks have said how many samples they have.
        pool = Groups.of([np.arange(len(window), dtype=np.int64)])
        return Proposal(np.array([len(window)], np.int64), pool, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        samples = messages[messages[:, 0] > 0, 0]
        steps = min(-(-int(samples.max()) // self.batch_size), int(samples.min()))
        lengths = window.lengths[: steps * self.batch_size]
        by_length = np.argsort(lengths, kind="stable")
        cuts = np.arange(steps + 1, dtype=np.int64) * len(lengths) // steps
        groups = Groups(by_length, cuts)
        draw = generator(window.seed, window.epoch, window.round, RandomStream.POOL_SORT_ORDER)
        return Plan(groups.take(self._order(window, steps, draw)))

    def _order(self, window: Window, steps: int, draw: np.random.Generator) -> Int64Array:
        """[steps] the group that is emitted at each place, the same on all ranks."""
        if not self.spread:
            return draw.permutation(steps)
        from_longest = -np.arange(steps, dtype=np.float64)
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
