"""Padded groups as runs of the sorted window, each the one that loses least: the heart of `Even`.

A padded group is a run of the samples sorted by length, so its cost is that of its longest sample
times their number. For a target, every sample of the window is tried as the longest of a run that
is as large as the target and the memory limit allow. What a run loses is what it stays below the
target, and its padding; a bonus for age decides between runs that are about as good. Where samples
are short against the target, many runs cost almost exactly what is asked for.

Costs that do not grow with the number of samples, because every group costs the same or as much as
its longest sample, make no difference to that: the memory limit decides how many go together.

Invariant: every target gets one run, of at least one sample, and no sample is in two. No run of
several samples exceeds the memory limit; none costs more than its target, except a single sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.policy import Window

ROUNDING = 1e-9
"""Share of a target that is forgiven, where it is the cost of just such a run."""
AGE_BONUS = 0.002 / 8**4
"""Loss that is forgiven to a run, for the fourth power of the rounds that its samples waited."""
UNDER = 8.0
"""How much more cost below the target counts than padding: each step has to be even."""
OLDEST = 64
"""Rounds beyond which waiting longer counts no more."""
WISH = 0.15
"""Loss of a run that is as far as can be from its place among the sorted samples."""
NO_LIMIT = 1 << 62
"""Stands for no limit of patches."""
FLAT = 1e-12
"""Share of a sample's cost below which what the next one adds is rounding."""
LENGTH, POSITION, AGE, PATCHES = range(4)
"""Rows of `SortedWindow.numbers`."""
SINGLE, EACH = range(2)
"""Rows of `SortedWindow.costs`."""


@dataclass(frozen=True)
class SortedWindow:
    """The samples of a window, shortest first, equally long ones in order of arrival."""

    numbers: Int64Array
    """[4, samples] length, position in the window, rounds waited, and patches or 0."""
    costs: Float64Array
    """[2, samples] cost of a group of one such sample, and what every further one adds."""

    @classmethod
    def of(cls, window: Window, cost: Cost) -> SortedWindow:
        count = len(window)
        # Length and position share one int64 key, which sorts faster than a stable argsort.
        keys = (window.lengths << 32) + np.arange(count)
        keys.sort()
        order = keys & 0xFFFFFFFF
        numbers = np.zeros((4, count), np.int64)
        numbers[LENGTH] = keys >> 32
        numbers[POSITION] = order
        numbers[AGE] = window.ages[order]
        if window.patches is not None:
            numbers[PATCHES] = window.patches[order]
        single, pair = (_cost_of_equals(cost, n, numbers[LENGTH]) for n in (1, 2))
        each = pair - single
        each[each <= FLAT * single] = 0.0
        return cls(numbers, np.stack([single, each]))

    def __len__(self) -> int:
        return len(self.numbers[0])

    def in_tokens(self, ages: Int64Array) -> SortedWindow:
        """The same samples of other ages, a group's cost being its padded tokens."""
        numbers = self.numbers.copy()
        numbers[AGE] = ages
        lengths = numbers[LENGTH].astype(np.float64)
        return SortedWindow(numbers, np.stack([lengths, lengths]))


def _cost_of_equals(cost: Cost, samples: int, lengths: Int64Array) -> Float64Array:
    """[lengths] cost of a group of equally long samples, for each length."""
    count = np.full(len(lengths), samples, np.int64)
    shapes = GroupShapes(count, count * lengths, lengths, count * lengths * lengths)
    return np.asarray(cost(shapes, packed=False), np.float64)


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """What every run has to keep to."""

    max_tokens: int
    """Padded tokens of a run of several samples."""
    max_patches: int | None
    due: int
    """Rounds after which a sample has to go; 0 where each run has to hold the oldest sample."""
    max_images: int | None = None
    """For targets of two parts alone."""


def take_runs(
    samples: SortedWindow,
    targets: Float64Array,
    limits: RunLimits,
    *,
    oldest: bool,
    wishes: Float64Array | None = None,
    pull: float = WISH,
    tilt: float = 0.0,
) -> tuple[Int64Array, Int64Array]:
    """Takes a run out of the window for one target after the other.

    Args:
        samples: at least as many as targets.
        targets: [steps] cost that each run should come close to, largest first.
        limits: the memory limit, and when a sample has to go.
        oldest: whether each run has to hold the oldest sample that is left. Otherwise one that is
            due has to go into the last step that has room for it, or alone into the first if none
            has.
        wishes: [steps] where in the sorted window each run should be, as a share of its tokens.
        pull: loss of a run that is as far as can be from its wish.
        tilt: loss forgiven to a run of the longest samples, and in part to shorter ones; negative
            where short ones should go first.

    Returns:
        [samples] members of `samples` taken, run after run, longest last; and [steps + 1] where
        each run begins.
    """
    numbers, costs = samples.numbers, samples.costs
    patches = NO_LIMIT if limits.max_patches is None else limits.max_patches
    if wishes is None:
        wishes = np.full(len(targets), -1.0)
    return fill_runs(
        *(numbers, costs, targets, wishes, pull, tilt),
        *(limits.max_tokens, patches, limits.due, oldest),
    )


def fill_runs(
    numbers: Int64Array,
    costs: Float64Array,
    targets: Float64Array,
    wishes: Float64Array,
    pull: float,
    tilt: float,
    max_tokens: int,
    max_patches: int,
    due: int,
    oldest: bool,
) -> tuple[Int64Array, Int64Array]:
    """What `take_runs` does, on plain arrays."""
    index = np.arange(numbers.shape[1])
    none = index[:0]
    made: list[Int64Array] = []
    for step, target in enumerate(targets.tolist()):
        must = _must(numbers, costs[SINGLE], targets, step, due, oldest)
        spare = len(targets) - step - 1  # samples that must remain for the other steps
        most = len(index) - spare
        begin, end = _best(
            *(numbers, costs, target, float(wishes[step]), pull, tilt, must),
            *(max_tokens, max_patches, most),
        )
        made.append(index[begin:end])
        numbers = np.concatenate([numbers[:, :begin], numbers[:, end:]], axis=1)
        costs = np.concatenate([costs[:, :begin], costs[:, end:]], axis=1)
        index = np.concatenate([index[:begin], index[end:]])
    ends = np.cumsum([0, *map(len, made)], dtype=np.int64)
    return np.concatenate([none, *made]), ends


def _must(
    numbers: Int64Array,
    single: Float64Array,
    targets: Float64Array,
    step: int,
    due: int,
    oldest: bool,
) -> int:
    """The sample that has to go into this step, or -1."""
    if oldest:
        first = numbers[AGE] == numbers[AGE].max()
        return int(np.where(first, numbers[POSITION], NO_LIMIT).argmin())
    late = numbers[AGE] >= due
    if not late.any():
        return -1
    if step + 1 < len(targets):  # else all that are late
        fits_later = single <= targets[step + 1] * (1 + ROUNDING)
        fits_now = single <= targets[step] * (1 + ROUNDING)
        late &= ~fits_later & (fits_now | (step == 0))
    positions = np.where(late, numbers[POSITION], NO_LIMIT)
    found = int(positions.argmin())
    return found if late[found] else -1


def _best(
    numbers: Int64Array,
    costs: Float64Array,
    target: float,
    wish: float,
    pull: float,
    tilt: float,
    must: int,
    max_tokens: int,
    max_patches: int,
    most: int,
) -> tuple[int, int]:
    """Begin and end of the run that loses least; of equals the one of the shortest samples.

    Lengths 4, 5, 8, 8, 9, a cost of samples x longest and a target of 16: the run of one sample of
    9 costs 9 and loses 7/16; that of two of 8 costs 16 and loses nothing; that which ends with the
    5 could hold three, but there are only two, which cost 10 and lose 6/16, besides the padding of
    1/10.

    Args:
        must: the sample that the run has to hold, or -1.
        most: samples that it may hold.
    """
    count = numbers.shape[1]
    first, last = 0, count
    if must >= 0:  # a run with a longer sample holds no more
        first = must
        last = min(count, must + max(max_tokens // int(numbers[LENGTH, must]), 1))
    running = np.zeros((3, last + 1), np.int64)
    lengths = numbers[LENGTH, :last]
    lengths.cumsum(out=running[0, 1:])
    (np.minimum(numbers[AGE, :last], OLDEST) ** 4 * lengths).cumsum(out=running[1, 1:])
    longest = lengths[first:]
    single, each = costs[:, first:last]
    ends = np.arange(first + 1, last + 1)
    room = np.minimum(np.minimum(max_tokens // longest, ends), most)
    if max_patches < NO_LIMIT:
        numbers[PATCHES, :last].cumsum(out=running[2, 1:])
        begin = np.searchsorted(running[2], running[2, ends] - max_patches)
        room = np.minimum(room, ends - begin)
    spare = target * (1 + ROUNDING) - single
    further = np.full(len(ends), np.inf)
    np.divide(spare, each, out=further, where=each > 0)
    sizes = np.maximum(np.minimum(further + 1, room), 1).astype(np.int64)
    begins = ends - sizes
    real = (running[0, ends] - running[0, begins]).astype(np.float64)
    aged = (running[1, ends] - running[1, begins]).astype(np.float64)
    missing = 1 - (single + (sizes - 1) * each) / (target if target > 0 else 1.0)
    flat = each == 0  # there the memory limit says how large a run should be
    if flat.any():
        missing[flat] = 1 - sizes[flat] / np.maximum(max_tokens // longest[flat], 1)
    loss = UNDER * missing + 1 - real / (sizes * longest) - AGE_BONUS * (aged / real)
    middle = (running[0, ends] + running[0, begins]) / (2 * running[0, last])
    if wish >= 0:
        loss += pull * np.abs(middle - wish)
    loss -= tilt * middle
    unfit = (spare < 0) | (room < 1)
    if must >= 0:
        unfit |= begins > must
        unfit[0] = False  # alone, if nothing else fits
        if spare[0] < 0 or room[0] < 1:
            return must, must + 1
    loss[unfit] = np.inf
    found = int(loss.argmin())
    if unfit[found]:
        return 0, 1  # nothing fits: the shortest alone
    return int(begins[found]), int(ends[found])
