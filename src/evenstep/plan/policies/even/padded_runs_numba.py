"""Runs of the sorted window for numba: what `evenstep.plan.policies.even.padded_runs` does.

Every number is computed by the same operations in the same order, so the runs are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

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


@cache
def compiled() -> Callable[..., tuple[Int64Array, Int64Array]] | None:
    """`padded_runs.fill_runs` for numba, compiled at its first call; None where numba is not
    installed."""
    try:
        import numba
    except ImportError:
        return None
    # Not cached on disk: the package's folder may be read-only, or shared with other machines.
    jit = numba.njit(nogil=True, error_model="numpy")
    fill = jit(_filler(jit(_must), jit(_best), jit(_remove)))

    def fill_runs(
        numbers: Int64Array,
        costs: Any,
        targets: Any,
        wishes: Any,
        pull: float,
        tilt: float,
        max_tokens: int,
        max_patches: int,
        due: int,
        oldest: bool,
    ) -> tuple[Int64Array, Int64Array]:
        count = numbers.shape[1]
        taken, ends = np.empty(count, np.int64), np.zeros(len(targets) + 1, np.int64)
        fill(
            *(np.concatenate([numbers, np.arange(count)[None]]), costs.copy()),
            *(np.ascontiguousarray(targets), np.ascontiguousarray(wishes), taken, ends),
            *(np.empty((3, count + 1), np.int64), pull, tilt),
            *(max_tokens, max_patches, due, oldest),
        )
        return taken[: ends[-1]], ends

    return fill_runs


def _must(
    numbers: Any, single: Any, count: Any, targets: Any, step: Any, due: Any, oldest: Any
) -> Any:
    found, first = -1, NO_LIMIT
    last = step + 1 == len(targets)
    most = numbers[2, :count].max()
    for i in range(count):
        if numbers[1, i] >= first:
            continue
        if oldest:
            if numbers[2, i] < most:
                continue
        else:
            if numbers[2, i] < due:
                continue
            if not last:
                if single[i] <= targets[step + 1] * (1 + ROUNDING):
                    continue
                if step > 0 and single[i] > targets[step] * (1 + ROUNDING):
                    continue
        found, first = i, numbers[1, i]
    return found


def _best(
    numbers: Any,
    costs: Any,
    running: Any,
    count: Any,
    target: Any,
    wish: Any,
    pull: Any,
    tilt: Any,
    must: Any,
    max_tokens: Any,
    max_patches: Any,
    most: Any,
) -> Any:
    first, last = 0, count
    if must >= 0:
        first = must
        last = min(count, must + max(max_tokens // numbers[0, must], 1))
    running[:, 0] = 0
    for i in range(last):
        running[0, i + 1] = running[0, i] + numbers[0, i]
        running[1, i + 1] = running[1, i] + min(numbers[2, i], OLDEST) ** 4 * numbers[0, i]
        running[2, i + 1] = running[2, i] + numbers[3, i]
    limit = target * (1 + ROUNDING)
    whole = target if target > 0 else 1.0
    least, begin, end = np.inf, 0, 1  # where nothing fits, the shortest alone
    patched = 0  # the run that ends with i has room for samples from there on
    for i in range(first, last):
        longest, single, each = numbers[0, i], costs[0, i], costs[1, i]
        room = min(min(max_tokens // longest, i + 1), most)
        if max_patches < NO_LIMIT:
            while running[2, patched] < running[2, i + 1] - max_patches:
                patched += 1
            room = min(room, i + 1 - patched)
        spare = limit - single
        if spare < 0 or room < 1:
            if i == must:
                return must, must + 1
            continue
        further = spare / each if each > 0 else np.inf
        size = max(int(min(further + 1, float(room))), 1)
        start = i + 1 - size
        if must >= 0 and start > must:
            continue
        real = float(running[0, i + 1] - running[0, start])
        aged = float(running[1, i + 1] - running[1, start])
        missing = 1 - (single + (size - 1) * each) / whole
        if each == 0:
            missing = 1 - size / max(max_tokens // longest, 1)
        loss = UNDER * missing + 1 - real / float(size * longest) - AGE_BONUS * (aged / real)
        middle = float(running[0, i + 1] + running[0, start]) / float(2 * running[0, last])
        if wish >= 0:
            loss = loss + pull * abs(middle - wish)
        loss = loss - tilt * middle
        if loss < least:
            least, begin, end = loss, start, i + 1
    return begin, end


def _remove(numbers: Any, costs: Any, count: Any, begin: Any, end: Any) -> None:
    for i in range(end, count):
        to = i - end + begin
        for row in range(numbers.shape[0]):
            numbers[row, to] = numbers[row, i]
        for row in range(costs.shape[0]):
            costs[row, to] = costs[row, i]


def _filler(
    must_of: Callable[..., Any], best: Callable[..., Any], remove: Callable[..., None]
) -> Callable[..., None]:
    def fill(
        numbers: Any,
        costs: Any,
        targets: Any,
        wishes: Any,
        taken: Any,
        ends: Any,
        running: Any,
        pull: Any,
        tilt: Any,
        max_tokens: Any,
        max_patches: Any,
        due: Any,
        oldest: Any,
    ) -> None:
        count = numbers.shape[1]
        for step in range(len(targets)):
            must = must_of(numbers, costs[0], count, targets, step, due, oldest)
            most = count - (len(targets) - step - 1)
            begin, end = best(
                *(numbers, costs, running, count, targets[step], wishes[step], pull),
                *(tilt, must, max_tokens, max_patches, most),
            )
            at = ends[step]
            for i in range(begin, end):
                taken[at + i - begin] = numbers[4, i]
            ends[step + 1] = at + end - begin
            remove(numbers, costs, count, begin, end)
            count -= end - begin

    return fill
