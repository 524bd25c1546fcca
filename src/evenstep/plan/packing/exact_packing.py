"""The best packing there is, by integer programming: WLB-LLM's equations 1 and 2.

What greedy packing leaves on the table is told by this, at a price of seconds to minutes for one
global batch; it is for measuring, not for training. HiGHS solves it, through SciPy.

Equation 1, fixed length, has ``max_tokens=context`` and squared lengths for works; equation 2,
variable length, has ``max_tokens`` of 1.25 x context and the works of a `Workload`. Where the
documents of several iterations are packed together, the sum over iterations of the largest work is
what gets least, which for one iteration is the largest work itself.

Invariant: never worse than the best packing that was known before. Alone among plans, what it
finds in its time depends on the machine, where it is not proven to be optimal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.packing.tight_fill import tight_fill
from evenstep.plan.partition.items import sums

__all__ = ["ExactPacking", "exact_packing"]


OPTIMAL, FEASIBLE, GREEDY, NONE = "optimal", "feasible", "greedy", "none"


@dataclass(frozen=True, kw_only=True)
class ExactPacking:
    """A packing, and how much is known of it."""

    placed: Int64Array | None
    """[documents] micro-batch of each, where ``i // micro_batches`` is the iteration of micro-batch
    i; None where no packing was found at all."""
    status: str
    """"optimal": proven to be the best. "feasible": found by the solver, better than what was
    known, and not proven to be the best in the time it had. "greedy": the solver found nothing
    better, so this is what was known before. "none": nothing was found, and nothing was known."""
    largest: int
    """Sum over iterations of the largest work of a micro-batch; 0 without a packing."""
    bound: float
    """No packing has less than this."""


def exact_packing(
    lengths: Int64Array,
    works: Int64Array,
    *,
    micro_batches: int,
    max_tokens: int,
    iterations: int = 1,
    time_limit: float = 10.0,
    known: Int64Array | None = None,
) -> ExactPacking:
    """
    Args:
        lengths: [documents] int64 tokens.
        works: [documents] int64 work of each; its square of length for equation 1.
        micro_batches: of an iteration.
        max_tokens: tokens that a micro-batch holds at most.
        iterations: how many the documents are for.
        time_limit: seconds that the solver may take.
        known: [documents] micro-batch of each in a packing that is known to be possible, as the
            original one is. Greedy packing is tried besides: see `tight_fill`.

    Raises:
        ConfigurationError: the known packing breaks the cap or leaves a document out.
        SampleError: a document is longer than a micro-batch.
        ImportError: SciPy is not installed (``pip install 'evenstep[fit]'``).
    """
    check_at_least(1, micro_batches=micro_batches, max_tokens=max_tokens, iterations=iterations)
    if not len(lengths):
        return ExactPacking(placed=lengths.copy(), status=OPTIMAL, largest=0, bound=0.0)
    if int(lengths.max()) > max_tokens:
        raise SampleError(
            f"a document has {lengths.max():,} tokens, over max_tokens={max_tokens:,}; cut it first"
        )
    shape = (iterations, micro_batches)
    best = _best_known(lengths, works, shape, max_tokens, known)
    largest = None if best is None else _largest(best, works, shape)
    bound = max(-(-int(works.sum()) // micro_batches), int(works.max()))
    if largest is not None and largest <= bound:
        return ExactPacking(placed=best, status=OPTIMAL, largest=largest, bound=float(bound))
    solution, proven, finished = _solve(
        lengths, works, shape, max_tokens, time_limit, bound, largest
    )
    bound_found = max(float(bound), proven)
    status = NONE if best is None else GREEDY
    if solution is not None:
        found = _largest(solution, works, shape)
        if largest is None or found < largest:
            best, largest, status = solution, found, FEASIBLE
    if best is None or largest is None:
        return ExactPacking(placed=None, status=NONE, largest=0, bound=bound_found)
    if finished:
        status, bound_found = OPTIMAL, float(largest)
    return ExactPacking(
        placed=best, status=status, largest=largest, bound=min(bound_found, float(largest))
    )


def _best_known(
    lengths: Int64Array,
    works: Int64Array,
    shape: tuple[int, int],
    max_tokens: int,
    known: Int64Array | None,
) -> Int64Array | None:
    iterations, micro_batches = shape
    bins = iterations * micro_batches
    found: list[Int64Array] = []
    if known is not None:
        held = np.bincount(np.maximum(known, 0), weights=lengths, minlength=bins)
        if known.min() < 0 or len(held) > bins or held.max() > max_tokens:
            raise ConfigurationError(
                f"the known packing must place every document in one of {bins} micro-batches of at "
                f"most {max_tokens:,} tokens; leave it out if there is none"
            )
        found.append(known)
    greedy = tight_fill(lengths, works, bins, max_tokens)
    if greedy is not None:
        # Micro-batches of like work in one iteration.
        load = np.bincount(greedy, weights=works, minlength=bins)
        place = np.empty(bins, np.int64)
        place[np.argsort(-load, kind="stable")] = np.arange(bins)
        found.append(place[greedy])
    return min(found, key=lambda placed: _largest(placed, works, shape), default=None)


def _largest(placed: Int64Array, works: Int64Array, shape: tuple[int, int]) -> int:
    load = sums(works, placed, shape[0] * shape[1])
    return int(load.reshape(shape).max(axis=1).sum())


def _solve(
    lengths: Int64Array,
    works: Int64Array,
    shape: tuple[int, int],
    max_tokens: int,
    time_limit: float,
    bound: int,
    largest: int | None,
) -> tuple[Int64Array | None, float, bool]:
    """A packing or None; a lower bound of the sum of largest works; whether the search is over."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
    except ImportError as error:
        raise ImportError("exact_packing needs SciPy: pip install 'evenstep[fit]'") from error
    iterations, micro_batches = shape
    bins, count = iterations * micro_batches, len(lengths)
    order = np.argsort(-works, kind="stable")
    scale = bound / iterations  # so that coefficients are near 1, as the solver's tolerances are
    work = works[order] / scale
    # Variable k * bins + j says whether document k, by falling work, is in micro-batch j; the last
    # ones are the largest works of the iterations.
    cells, places = count * bins, np.arange(count * bins)
    document, column = places // bins, places % bins
    one_each = csr_array((np.ones(cells), (document, places)), (count, cells + iterations))
    tokens = csr_array(
        (lengths[order][document] / max_tokens, (column, places)), (bins, cells + iterations)
    )
    all_bins = np.arange(bins)
    under = csr_array(
        (
            np.concatenate([work[document], -np.ones(bins)]),
            (
                np.concatenate([column, all_bins]),
                np.concatenate([places, cells + all_bins // micro_batches]),
            ),
        ),
        (bins, cells + iterations),
    )
    goal = np.concatenate([np.zeros(cells), np.ones(iterations)])
    total = largest / scale if largest is not None else np.inf
    # Micro-batches of an iteration are alike, and so are iterations: number them in the order in
    # which documents come to them. Then micro-batch m of iteration b has at least b + m before it.
    alike = (column // micro_batches + column % micro_batches > document).astype(np.float64)
    result: Any = milp(
        goal,
        integrality=np.concatenate([np.ones(cells), np.zeros(iterations)]),
        bounds=Bounds(
            np.zeros(cells + iterations), np.concatenate([1 - alike, np.full(iterations, total)])
        ),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(tokens, -np.inf, 1),
            LinearConstraint(under, -np.inf, 0),
            LinearConstraint(csr_array(goal[None]), bound / scale, total),
        ],
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    proven = result.mip_dual_bound * scale if result.mip_dual_bound is not None else 0.0
    if not math.isfinite(proven):
        proven = 0.0
    # 0: solved. 2: nothing is left to be found below what is known.
    finished = result.status == 0 or (result.status == 2 and largest is not None)
    if result.x is None:
        return None, proven, finished
    chosen = result.x[:cells].reshape(count, bins).argmax(axis=1)
    placed = np.empty(count, np.int64)
    placed[order] = chosen
    # The solver's numbers are floating point; a packing is taken only if it holds exactly.
    if np.bincount(placed, weights=lengths, minlength=bins).max() > max_tokens:
        return None, 0.0, False
    return placed, proven, finished
