"""WLB-LLM's Algorithm 1 line by line, to compare with `WorkloadPacking`; not for training.

Followed to the letter: a document must leave a micro-batch *below* the limit; where the micro-batch
of least work has no room, only the one of fewest tokens is tried; every queue that is long enough
gives up its documents in the same step; an outlier that was given up and found no room is an
ordinary document from then on; nothing bounds how long a document waits.

One line cannot be taken literally: `Remained_Doc` is never emptied, so every document left over
once would be trained on again in each later step. Here it is emptied when its documents are taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups import Groups
from evenstep.plan.packing.step_limits import DocumentCost


class Algorithm1:
    """A planner for `run_planner`. It remembers which outliers left their queue, so a stream needs
    a new one."""

    def __init__(
        self, *, micro_batches: int, max_tokens: int, thresholds: Sequence[int], cost: DocumentCost
    ) -> None:
        self.micro_batches, self.max_tokens = micro_batches, max_tokens
        self.thresholds, self.cost = thresholds, cost
        self._given_up = np.empty(0, np.bool_)
        """[documents that wait] whether each was in a step already and found no room."""

    def __call__(self, lengths: Int64Array) -> Groups:
        """Lines 2 to 37 for one global batch; `lengths` are those of all that wait, in order of
        arrival. Lines are those of the paper's listing."""
        new = len(lengths) - len(self._given_up)
        pending = np.append(self._given_up, np.zeros(new, np.bool_))
        classes = np.searchsorted(self.thresholds, lengths, side="right")
        pending |= classes == 0  # lines 4 to 11
        for queue in range(1, len(self.thresholds) + 1):  # lines 12 to 17
            waiting = np.flatnonzero((classes == queue) & ~pending)
            if len(waiting) >= self.micro_batches:
                pending[waiting[: self.micro_batches]] = True
        documents = np.flatnonzero(pending)
        ordered = documents[np.argsort(-lengths[documents], kind="stable")]  # line 19
        batch_of = np.full(len(lengths), -1, np.int64)
        work, tokens = [0] * self.micro_batches, [0] * self.micro_batches
        costs = self.cost.of_documents(lengths)
        for document in ordered.tolist():  # lines 22 to 35
            length = int(lengths[document])
            for chosen in (work.index(min(work)), tokens.index(min(tokens))):
                if tokens[chosen] + length < self.max_tokens:
                    batch_of[document] = chosen
                    work[chosen] += int(costs[document])
                    tokens[chosen] += length
                    break
        self._given_up = pending[batch_of < 0]
        return Groups.by_label(batch_of)


def auto_thresholds(
    lengths: Int64Array, *, context: int, queues: int, cost: DocumentCost
) -> tuple[int, ...]:
    """Thresholds of the queues of outliers, for which the paper gives no rule.

    The first is the largest length at which a document alone costs as much as an average
    micro-batch without outliers: shorter documents can be balanced, longer ones cannot. The others
    divide the *cost* between there and a document of `context` tokens in equal ratios.

    Args:
        lengths: [documents] int64; a sample of the documents to come, some thousands.
    """
    of_length = cost.of_documents(np.arange(context + 1)).astype(np.float64)
    ascending = np.sort(lengths)
    costs = of_length[ascending]
    # below: [documents + 1] cost of a micro-batch made of the shortest documents alone
    below = np.append(0.0, costs.cumsum()) * (context / float(ascending.sum()))
    count = len(ascending)
    # Documents below the threshold become fewer from pass to pass, down to the largest solution.
    while (fewer := int(np.searchsorted(costs, below[count], side="right"))) < count:
        count = fewer
    first = int(np.searchsorted(of_length, below[count], side="right"))
    low, top = of_length[first], of_length[-1]
    ends = low * (top / low) ** (np.arange(1, queues) / queues)
    return (first, *(np.searchsorted(of_length, ends, side="right") - 1).tolist())
