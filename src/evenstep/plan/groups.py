"""Groups of samples: as two arrays, formed under a token budget, spread over steps, aligned.

`Groups` names every sample at most once, and no group is empty.

`token_budget_groups` cuts a window into padded groups (ODB, section 2.2 and App. D). They are
formed from the longest sample down, so for every group ``samples * longest <= max_tokens``, except
a single sample that is longer than the budget itself.

`spread` deals a round's groups of like cost out over its steps. Ranks that form groups of samples
of like length, and make groups of like length meet, train on one length in every step, and learn
less from it than from random batches. But only costs have to meet. Where several steps of a round
cost about the same on all ranks, their groups can change places, and each rank deals its own so
that long, middle and short ones come together, without a message.

Four steps of one class on two ranks, whose groups are numbered from the longest: rank r's i-th goes
to the place ``(i + 4 r / 2) mod 4``::

    place     0   1   2   3
    rank 0    0   1   2   3
    rank 1    2   3   0   1

so the longest of one meets the middle of the other in each step, and the places are emitted in an
order drawn alike on all ranks. With W ranks, W groups evenly spaced in length meet.

Where gradients of k steps are added up, the k steps of an update are mixed. With k = 2 above, the
offset is ``4 r / (2 * 2)``, and the places 0 and 2 are one update, as are 1 and 3::

    place     0   1   2   3
    rank 0    0   1   2   3
    rank 1    3   0   1   2

The first update holds groups 0 and 2 of rank 0, and 3 and 1 of rank 1.

`align` gives every rank the same number of groups: max-based bidirectional alignment (ODB, App. A).
After it, a rank has exactly `target` groups, of which none is empty. Splitting never lengthens a
group, so whatever memory limit held before still holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import GroupShapes
from evenstep.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class PaddedTo:
    """A policy is shown lengths that are rounded up to `samples`, so that its limits hold for what
    lies in memory."""

    samples: int = 1
    """Of each padded row, or each document of a packed one."""
    rows: int = 1
    """Of each packed row, as a whole. A policy's limit is such a multiple."""


NO_MULTIPLE = PaddedTo()


@dataclass(frozen=True)
class Groups:
    """Group g holds ``members[offsets[g]:offsets[g + 1]]``."""

    members: Int64Array
    """[samples] positions in the window, or arrival numbers; the owner of the object says which."""
    offsets: Int64Array
    """[groups + 1] strictly increasing, from 0 to the number of samples."""

    @classmethod
    def empty(cls) -> Groups:
        return cls(np.empty(0, np.int64), np.zeros(1, np.int64))

    @classmethod
    def of(cls, members: Sequence[Int64Array]) -> Groups:
        """From the members of each group."""
        offsets = np.cumsum([0, *map(len, members)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *members]), offsets)

    @classmethod
    def by_label(cls, labels: Int64Array, order: Int64Array | None = None) -> Groups:
        """From the number of each sample's group, in the order of these numbers.

        Args:
            labels: [samples] int64 below 2**31. A number that no sample has is left out, and so is
                a sample that has -1.
            order: [samples] positions in the order in which they become members; None is ascending.
        """
        # Label and position share one int64 key, which sorts faster than a stable argsort.
        keys = (labels if order is None else labels[order]) << 32
        keys += np.arange(len(keys))
        keys.sort()
        keys = keys[np.searchsorted(keys, 0) :]
        positions = keys & 0xFFFFFFFF
        sizes = np.bincount(keys >> 32)
        offsets = np.zeros(np.count_nonzero(sizes) + 1, np.int64)
        sizes[sizes > 0].cumsum(out=offsets[1:])
        return cls(positions if order is None else order[positions], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Int64Array:
        """[groups] samples in each group."""
        return self.offsets[1:] - self.offsets[:-1]

    def labels(self) -> Int64Array:
        """[samples] the group of each, where every sample is in one."""
        labels = np.empty(len(self.members), np.int64)
        labels[self.members] = np.arange(len(self)).repeat(self.sizes)
        return labels

    def group(self, index: int) -> Int64Array:
        return self.members[self.offsets[index] : self.offsets[index + 1]]

    def take(self, order: Int64Array) -> Groups:
        """The groups named by `order`, in that order. Vectorised over groups."""
        sizes = self.sizes[order]
        offsets = np.zeros(len(order) + 1, np.int64)
        sizes.cumsum(out=offsets[1:])
        # Sample k of the result comes from its group's old start plus its rank inside the group.
        shift = (self.offsets[order] - offsets[:-1]).repeat(sizes)
        return Groups(self.members[np.arange(offsets[-1]) + shift], offsets)

    def shapes(self, lengths: Int64Array, vision: Int64Array | None = None) -> GroupShapes:
        """Shapes of the groups.

        Args:
            lengths: [samples] tokens, indexed by `members`.
            vision: [3, samples] patches, images and patch pairs, indexed likewise, if counted.
        """
        counted = None if vision is None else vision[:, self.members]
        return GroupShapes.measure(lengths[self.members], self.offsets, counted)


def longest_first(lengths: Int64Array) -> Int64Array:
    """[samples] positions sorted by length, longest first, ties in arrival order.

    Length and position share one int64 key, which sorts several times faster than a stable
    argsort. Lengths must be below 2**31.
    """
    keys = (-lengths << 32) + np.arange(len(lengths), dtype=np.int64)
    keys.sort()
    return keys & 0xFFFFFFFF


def token_budget_groups(
    lengths: Int64Array,
    max_tokens: int,
    *,
    patches: Int64Array | None = None,
    max_patches: int | None = None,
) -> Groups:
    """Cuts a window into groups of nearly equal padded size.

    Samples are taken from longest to shortest. A group is closed when it holds ``t`` samples; then
    ``t = max(max_tokens // l, 1)`` (eq. 1) for the shortest length ``l`` just added. The threshold
    carries over to the next group, whose samples are shorter, so it stays within the budget too.

    Args:
        lengths: [samples] int64, each positive and below 2**31.
        max_tokens: token budget L_max of a group after padding.
        patches: [samples] int64, vision patches of each sample; needed with `max_patches`.
        max_patches: a group is also closed before its patches would exceed this; a single sample
            above it stays alone.

    Returns:
        Groups of window positions, longest group first.

    Raises:
        ConfigurationError: `max_patches` without `patches`.
    """
    if max_patches is not None and patches is None:
        raise ConfigurationError(f"max_patches={max_patches} needs the patches of each sample")
    order = longest_first(lengths)
    total = len(order)
    length_at = lengths[order].item  # an element as a plain int, several times faster than by index
    running = None if patches is None else np.cumsum(patches[order])
    ends, end, threshold, before = [0], 0, 1, 0
    while end < total:
        end = full = min(end + threshold, total)
        if max_patches is not None and running is not None:
            # The first sample over the limit of patches; the group's first always fits.
            over = int(np.searchsorted(running, before + max_patches, side="right"))
            end = min(full, max(over, ends[-1] + 1))
            before = int(running[end - 1])
        ends.append(end)
        if end == full:  # closed by the token budget; a group cut by patches keeps its threshold
            threshold = max_tokens // length_at(end - 1) or 1
    return Groups(order, np.array(ends, np.int64))


def spread(
    lengths: Float64Array,
    classes: Sequence[Int64Array],
    *,
    rank: int,
    ranks: int,
    accumulate: int,
    step: int,
    draw: np.random.Generator,
) -> Int64Array:
    """The order in which this rank emits its groups.

    Args:
        lengths: [steps] mean length of the samples of each group.
        classes: the steps that cost about the same, for each class; the same on all ranks. Each
            step is in one class.
        rank: number of this rank among those that have groups.
        ranks: how many have.
        accumulate: steps whose gradients are added up.
        step: of the epoch at which the round begins, which may be in the middle of an update.
        draw: in the same state on all ranks.

    Returns:
        [steps] the group in each place.
    """
    updates: list[Int64Array] = []
    loose: list[Int64Array] = []
    for steps in classes:
        count = len(steps)
        offset = rank * count // (ranks * accumulate)
        places = np.roll(steps[np.argsort(-lengths[steps], kind="stable")], offset)
        full = count // accumulate
        updates += list(places[: full * accumulate].reshape(accumulate, full).T)
        loose.append(places[full * accumulate :])
    rest = np.concatenate([np.empty(0, np.int64), *loose])
    rest = rest[draw.permutation(len(rest))]
    full = len(rest) // accumulate * accumulate
    updates += list(rest[:full].reshape(-1, accumulate))
    order = draw.permutation(len(updates))
    emitted = np.concatenate([np.empty(0, np.int64), *(updates[u] for u in order), rest[full:]])
    # The first places may belong to an update that the round before began.
    return np.roll(emitted, -step % accumulate)


def mean_lengths(groups: Groups, lengths: Int64Array) -> Float64Array:
    """[groups] mean length of the samples of each; at least one group."""
    tokens = np.add.reduceat(lengths[groups.members], groups.offsets[:-1])
    return np.asarray(tokens / groups.sizes, np.float64)


def like_costs(costs: Float64Array, tolerance: float) -> list[Int64Array]:
    """Classes of steps whose costs differ by no more than a share of the largest of the class.

    With a tolerance of 0.05, the costs 100, 98, 96, 90, 80 and 79 are three classes: 100 to 96, 90,
    and 80 and 79.

    Args:
        costs: [steps] what each step costs on all ranks.
        tolerance: from 0 to 1.
    """
    order = np.argsort(-costs, kind="stable")
    descending = costs[order]
    classes: list[Int64Array] = []
    begin = 0
    while begin < len(order):
        end = int(np.count_nonzero(descending >= descending[begin] * (1 - tolerance)))
        classes.append(order[begin : max(end, begin + 1)])
        begin = max(end, begin + 1)
    return classes


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


def align(groups: Groups, target: int, overdue: Int64Array | None = None) -> Groups:
    """Brings one rank's groups, longest group first, to exactly `target` (Algorithm 1).

    Too few groups: single samples are split off, from the longest multi-sample group on. Too many:
    the `target` groups with most samples are kept and the others' samples stay in the buffer,
    except that groups with an overdue sample are kept before all others, most overdue first.
    Algorithm 1 has no such rule, and can return the same long sample for ever.

    Args:
        groups: groups of window positions, longest first; at least one.
        target: at least 1 and at most the number of samples.
        overdue: [groups] `rounds_overdue`; None if no group is overdue.

    Returns:
        The aligned groups, longest first.
    """
    count = len(groups)
    if count <= target:
        return _split(groups, target - count)
    largest_first = -groups.sizes
    order = np.lexsort((largest_first,) if overdue is None else (largest_first, -overdue))
    return groups.take(np.sort(order[:target]))


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
