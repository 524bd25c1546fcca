"""The loop of `merging` for numba: the same merges, twenty times as fast.

Costs stay below 2**53, up to which the quotients of both writings are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

EXACT = 1 << 53
"""Limit of the sum of all costs."""


@cache
def compiled() -> Callable[..., None] | None:
    """`merging._merge` for numba, compiled at its first call; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Not cached on disk: the package's folder may be read-only, or shared with other machines.
    merge: Callable[..., None] = numba.njit(nogil=True)(_merge)
    return merge


def _merge(
    over: Any,
    shelf: Any,
    spares: Any,
    size: Any,
    tokens: Any,
    cost: Any,
    attention: Any,
    longest: Any,
    overhead: Any,
    into: Any,
    limit: Any,
    rates: Any,
) -> None:
    """
    Args:
        over: [n] groups over the limit, in the order in which they are merged.
        shelf: [groups] those that could take on work, the least spare first; -1 for the rest.
        spares: [groups] of each on the shelf.
        rates: exchange within and between nodes, ranks of a node, and cost of a token's roughness.
    """
    within, between, node, rough = rates
    held = 0
    while held < len(shelf) and shelf[held] >= 0:
        held += 1
    for index in over:
        while True:
            spare = size[index] * int(limit - overhead[index]) - cost[index]
            if spare >= 0 or not held:
                break
            low, high = 0, held
            while low < high:
                middle = (low + high) // 2
                if spares[shelf[middle]] < -spare:
                    low = middle + 1
                else:
                    high = middle
            at = min(low, held - 1)
            other = shelf[at]
            ranks, row = size[index] + size[other], tokens[index] + tokens[other]
            work, own = cost[index] + cost[other], attention[index] + attention[other]
            most = max(longest[index], longest[other])
            rate = between if ranks > node else within
            exposed = rate * row * (ranks - 1) // ranks - own // ranks
            extra = rough * most // 2 + max(exposed, 0)
            if work / ranks + extra >= cost[index] / size[index] + overhead[index]:
                break
            # A slice, whose numbers are known to be from 0 on, is moved several times as fast.
            after = shelf[at:held]
            for place in range(len(after) - 1):
                after[place] = after[place + 1]
            held -= 1
            size[index], tokens[index], cost[index], attention[index] = ranks, row, work, own
            longest[index], overhead[index] = most, extra
            into[other] = index
        if spare > 0:
            spares[index] = spare
            low, high = 0, held
            while low < high:
                middle = (low + high) // 2
                other = shelf[middle]
                if spares[other] < spare or (spares[other] == spare and other < index):
                    low = middle + 1
                else:
                    high = middle
            after = shelf[low : held + 1]
            moved = index
            for place in range(len(after)):
                moved, after[place] = after[place], moved
            held += 1
