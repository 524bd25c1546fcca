"""One rank's micro-batches of a step, filled to a cost that all ranks have agreed on.

Documents are taken in order of arrival as long as their costs have room in the step, and placed
from the dearest to the cheapest, each in the cheapest micro-batch that has room (WLB-LLM, section
4.3). One that would make its micro-batch dearer than agreed waits, and those after it fill the
gaps. Outliers that were released come first, and before them documents that must not wait any
longer, in order of arrival.

Invariants: no micro-batch exceeds the cap, and at least one document is placed.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.options import PackingOptions

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
