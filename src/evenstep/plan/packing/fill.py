"""One rank's micro-batches of a step, filled to a cost that all ranks have agreed on.

Documents are taken in order of arrival as long as their costs have room in the step, and placed
from the dearest to the cheapest, each in the cheapest micro-batch that has room (WLB-LLM, section
4.3). One that would make its micro-batch dearer than agreed waits, and those after it fill the
gaps. Outliers that were released come first, and before them documents that must not wait any
longer, in order of arrival. Invariants: no micro-batch exceeds the cap, and at least one document
is placed.

`drain` makes the last steps of an epoch: everything that is left, in as few steps as the cap
allows. All micro-batches are filled at once, by LPT, so that they are as equal as can be. Those of
similar cost then form a step, where what cannot be balanced, a few long documents, matters least.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.plan.groups import Groups
from evenstep.plan.packing.step_limits import PackingOptions
from evenstep.plan.partition.bins import best_fit_decreasing
from evenstep.plan.partition.greedy import lpt_fill

_SLACK = 200
"""A micro-batch may cost one part in so many over what was agreed."""


def fill(
    lengths: Int64Array,
    ages: Int64Array,
    options: PackingOptions,
    *,
    released: Int64Array,
    level: int,
    cost: int,
) -> Groups:
    """
    Args:
        lengths, ages: [documents] of all that wait, at least one, in order of arrival.
        released: positions of outliers to place, at most one for each micro-batch.
        level: cost above which other documents wait.
        cost: what every micro-batch should cost.

    Returns:
        At most `options.micro_batches` micro-batches of positions, none empty.
    """
    costs = options.cost.of_documents(lengths)
    step = _OpenStep(options, lengths, costs, cost + cost // _SLACK)
    ordinary = np.flatnonzero(costs <= level)
    late = ages[ordinary] >= options.max_delay
    step.place(ordinary[late], any_cost=True)
    step.place(released, any_cost=True)
    others = ordinary[~late]
    taken = costs[others].cumsum() <= options.micro_batches * cost - sum(step.loads)
    first = others[taken]
    step.place(first[np.argsort(-costs[first], kind="stable")])
    step.place(others)
    if not step.placed:
        step.place(np.array([0]), any_cost=True)
    return step.groups()


class _OpenStep:
    """Micro-batches as they are filled."""

    def __init__(
        self, options: PackingOptions, lengths: Int64Array, costs: Int64Array, most: int
    ) -> None:
        self.loads = [0] * options.micro_batches
        self.placed: dict[int, int] = {}
        """Micro-batch of each document."""
        self._rooms = [options.cap] * options.micro_batches
        self._lengths, self._costs, self._most = lengths, costs, most

    def place(self, documents: Int64Array, *, any_cost: bool = False) -> None:
        """Places what is not placed yet and has room, in the given order."""
        loads, rooms = self.loads, self._rooms
        lengths, costs = self._lengths[documents].tolist(), self._costs[documents].tolist()
        least = min(loads)
        for document, length, cost in zip(documents.tolist(), lengths, costs):
            if document in self.placed or (not any_cost and least + cost > self._most):
                continue
            fitting = [number for number, room in enumerate(rooms) if room >= length]
            if not fitting:
                continue
            number = min(fitting, key=loads.__getitem__)
            if not any_cost and loads[number] + cost > self._most:
                continue
            self.placed[document] = number
            loads[number] += cost
            rooms[number] -= length
            least = min(loads)

    def groups(self) -> Groups:
        """Positions ascend in each micro-batch."""
        label = np.full(len(self._lengths), -1, np.int64)
        label[list(self.placed)] = list(self.placed.values())
        return Groups.by_label(label)


def drain(
    lengths: Int64Array, options: PackingOptions, *, steps: int | None = None
) -> list[Groups]:
    """Plans all steps that are left.

    Args:
        lengths: [documents] int64 of all that is left, in order of arrival, none above the cap.
        steps: how many there must be, where ranks have agreed on a number; raised to what the cap
            needs. None is as few as the cap allows.

    Returns:
        The steps in order, each with at most `options.micro_batches` micro-batches of positions in
        `lengths`, ascending; together they hold every document once. The most costly step comes
        first, and so does the most costly micro-batch of each. There are fewer steps than `steps`
        only if there are fewer documents.
    """
    if not len(lengths):
        return []
    options.check(lengths)
    count, cap = options.micro_batches, options.cap
    costs = options.cost.of_documents(lengths)
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    fewest = math.ceil(int(lengths.sum()) / (cap * count))
    packed: Int64Array | None = None
    wanted = max(fewest, steps or 0)
    while True:
        balanced = lpt_fill(lengths, costs, order, min(wanted * count, len(lengths)), cap)
        if (balanced >= 0).all():
            return _to_steps(balanced, costs, wanted, count)
        # Balanced, some found no room; packed as tightly as possible, all may.
        if packed is None:
            packed = best_fit_decreasing(lengths, cap).labels()
        if packed.max() < wanted * count:
            return _to_steps(packed, costs, wanted, count)
        if wanted > len(lengths):
            raise InvariantError(f"{len(lengths)} documents do not fit in {wanted} steps")
        wanted += 1


def _to_steps(placed: Int64Array, costs: Int64Array, wanted: int, count: int) -> list[Groups]:
    """Divides micro-batches by descending cost into at most `wanted` steps of at most `count`."""
    groups = Groups.by_label(placed)
    loads = np.add.reduceat(costs[groups.members], groups.offsets[:-1])  # [micro-batches]
    descending = np.argsort(-loads, kind="stable")
    steps = min(wanted, len(groups))
    if len(groups) >= wanted * count:
        bounds = np.arange(steps + 1) * count
    else:
        # Too few to fill all steps: each gets at least one.
        bounds = np.arange(steps + 1) * len(groups) // steps
    return [groups.take(descending[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist())]
