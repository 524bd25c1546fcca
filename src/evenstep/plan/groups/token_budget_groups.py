"""Padded groups of a window under a token budget (ODB, section 2.2 and App. D).

Invariant: groups are formed from the longest sample down, so for every group
``samples * longest <= max_tokens``, except a single sample that is longer than the budget itself.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups


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
    descending = lengths[order]
    if max_patches is not None and patches is not None:
        ends = _cut_with_patches(descending, patches[order], max_tokens, max_patches)
    else:
        ends = _cut(descending, max_tokens)
    return Groups(order, np.array(ends, dtype=np.int64))


def _cut(descending: Int64Array, max_tokens: int) -> list[int]:
    total = len(descending)
    length_at = descending.item  # an element as a plain int, several times faster than by index
    ends = [0]
    end = 1
    while end < total:
        ends.append(end)
        end += max_tokens // length_at(end - 1) or 1
    if total:
        ends.append(total)
    return ends


def _cut_with_patches(
    descending: Int64Array, patches: Int64Array, max_tokens: int, max_patches: int
) -> list[int]:
    total, length_at = len(descending), descending.item
    running = np.cumsum(patches)
    ends = [0]
    end, threshold, before = 0, 1, 0
    while end < total:
        # First sample whose inclusion would exceed the patch limit; the group's first always fits.
        barrier = int(np.searchsorted(running, before + max_patches, side="right"))
        full = min(end + threshold, total)
        end = min(full, max(barrier, end + 1))
        before = int(running[end - 1])
        ends.append(end)
        if end == full:  # closed by the token budget; a group cut by patches keeps its threshold
            threshold = max_tokens // length_at(end - 1) or 1
    return ends
