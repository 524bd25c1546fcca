"""The same number of groups on every rank: max-based bidirectional alignment (ODB, App. A).

Invariant: after `align`, a rank has exactly `target` groups, every sample of the window is in one
group or returned, and no group is empty. Splitting never lengthens a group, so whatever memory
limit held before still holds.
"""

from __future__ import annotations

import itertools

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups


def alignment_target(groups: Int64Array, samples: Int64Array) -> int:
    """The number of steps that all active ranks make this round: the most groups of any, and no
    more than the samples of any. T_grp of eq. 3, where no rank limits how many it can emit.

    Args:
        groups: [ranks] groups formed; a rank with none is not active and does not count.
        samples: [ranks] buffered samples, at least as many as groups.

    Returns:
        0 where no rank is active, else at least 1.
    """
    active = groups > 0
    if not active.any():
        return 0
    return min(int(groups.max()), int(samples[active].min()))


def rounds_overdue(groups: Groups, ages: Int64Array, max_wait: int) -> Int64Array:
    """[groups] rounds by which the oldest sample of each group is overdue: 1 where it has waited
    `max_wait` rounds, 0 where it has waited less.

    Args:
        groups: at least one group, of positions in `ages`.
        ages: [samples] rounds that each has waited.
    """
    oldest = np.maximum.reduceat(ages[groups.members], groups.offsets[:-1])
    overdue: Int64Array = np.maximum(oldest - max_wait + 1, 0)
    return overdue


def align(
    groups: Groups, target: int, overdue: Int64Array | None = None
) -> tuple[Groups, Int64Array]:
    """Brings one rank's groups, longest group first, to exactly `target` (Algorithm 1).

    Too few groups: single samples are split off, from the longest multi-sample group on. Too many:
    the `target` groups with most samples are kept and the others' samples returned to the buffer,
    except that groups with an overdue sample are kept before all others, most overdue first.
    Algorithm 1 has no such rule, and can return the same long sample for ever.

    Args:
        groups: groups of window positions, longest first; at least one.
        target: at least 1 and at most the number of samples.
        overdue: [groups] `rounds_overdue`; None if no group is overdue.

    Returns:
        The aligned groups, longest first, and the returned window positions.
    """
    count = len(groups)
    none = np.empty(0, np.int64)
    if count == target:
        return groups, none
    if count < target:
        return _split(groups, target - count), none
    largest_first = -groups.sizes
    order = np.lexsort((largest_first,) if overdue is None else (largest_first, -overdue))
    kept = np.sort(order[:target])
    returned = groups.take(np.sort(order[target:])).members
    return groups.take(kept), returned


def _split(groups: Groups, missing: int) -> Groups:
    # Members run from longest to shortest, so a boundary after each of a group's first members
    # makes its longest samples singletons and leaves the rest together.
    bounds = groups.offsets.tolist()
    cuts: list[int] = []
    for begin, end in itertools.pairwise(bounds):
        if len(cuts) == missing:
            break
        cuts += range(begin + 1, min(end, begin + 1 + missing - len(cuts)))
    return Groups(groups.members, np.array(sorted(bounds + cuts), np.int64))
