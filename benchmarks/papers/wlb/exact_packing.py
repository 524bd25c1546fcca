"""The best packing there is, by integer programming: WLB-LLM's equations 1 and 2.

It measures what greedy packing loses. It takes seconds to minutes for one global batch, so it is
for measuring, not for training. HiGHS solves it, through SciPy.

Equation 1, fixed length, has ``max_tokens=context`` and squared lengths as costs; equation 2,
variable length, has ``max_tokens`` of 1.25 x context and the costs of a `DocumentCost`. If the
documents of several steps are packed together, the sum over steps of the largest cost is minimised,
which for one step is the largest cost itself.

Invariant: never worse than the best packing that was known before. This is the only plan that may
depend on the machine: a packing not proven to be optimal depends on what was found in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.papers.wlb.tight_fill import tight_fill
from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.partition.items import sums
from evenstep.plan.value_checks import check_at_least

OPTIMAL, FEASIBLE, GREEDY, NONE = "optimal", "feasible", "greedy", "none"


@dataclass(frozen=True, kw_only=True)
class ExactPacking:
    """A packing, and how good it is known to be."""

    placed: Int64Array | None
    """[documents] micro-batch of each, where ``i // micro_batches`` is the step of micro-batch i;
    None if no packing was found at all."""
    status: str
    """"optimal": proven to be the best. "feasible": found by the solver, better than what was known
    before, but not proven to be the best within the time limit. "greedy": what was known before,
    since the solver found nothing better. "none": nothing was known or found."""
    largest: int
    """Sum over steps of the largest cost of a micro-batch; 0 without a packing."""
    bound: float
    """No packing has less than this."""


def exact_packing(
    lengths: Int64Array,
    costs: Int64Array,
    *,
    micro_batches: int,
    max_tokens: int,
    steps: int = 1,
    time_limit: float = 10.0,
    known: Int64Array | None = None,
) -> ExactPacking:
    """Searches for the packing with the least sum of largest costs.

    Args:
        lengths: [documents] int64 tokens.
        costs: [documents] int64 cost of each; the squared length for equation 1.
        micro_batches: micro-batches of a step.
        max_tokens: tokens that a micro-batch holds at most.
        steps: number of steps that the documents are for.
        time_limit: seconds that the solver may take.
        known: [documents] micro-batch of each in a packing known to be possible, as the original
            one is. Greedy packing is tried too: see `tight_fill`.

    Raises:
        ConfigurationError: the known packing breaks the cap or leaves a document out.
        SampleError: a document is longer than a micro-batch.
        ImportError: SciPy is not installed (``pip install 'evenstep[bench]'``).
    """
    check_at_least(1, micro_batches=micro_batches, max_tokens=max_tokens, steps=steps)
    if not len(lengths):
        return ExactPacking(placed=lengths.copy(), status=OPTIMAL, largest=0, bound=0.0)
    if int(lengths.max()) > max_tokens:
        raise SampleError(
            f"document {int(lengths.argmax())} has {lengths.max():,} tokens, over "
            f"max_tokens={max_tokens:,}; cut it first"
        )
    shape = (steps, micro_batches)
    best = _best_known(lengths, costs, shape, max_tokens, known)
    largest = None if best is None else _largest(best, costs, shape)
    bound = max(-(-int(costs.sum()) // micro_batches), int(costs.max()))
    if largest is not None and largest <= bound:
        return ExactPacking(placed=best, status=OPTIMAL, largest=largest, bound=float(bound))
    solution, proven, finished = _solve(
        lengths, costs, shape, max_tokens, time_limit, bound, largest
    )
    bound_found = max(float(bound), proven)
    status = NONE if best is None else GREEDY
    if solution is not None:
        found = _largest(solution, costs, shape)
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
    costs: Int64Array,
    shape: tuple[int, int],
    max_tokens: int,
    known: Int64Array | None,
) -> Int64Array | None:
    """The better of the known packing and a greedy one; None without either."""
    steps, micro_batches = shape
    bins = steps * micro_batches
    found: list[Int64Array] = []
    if known is not None:
        held = np.bincount(np.maximum(known, 0), weights=lengths, minlength=bins)
        if known.min() < 0 or len(held) > bins or held.max() > max_tokens:
            raise ConfigurationError(
                f"the known packing must place every document in one of {bins} micro-batches of at "
                f"most {max_tokens:,} tokens; leave it out if there is none"
            )
        found.append(known)
    greedy = tight_fill(lengths, costs, bins, max_tokens)
    if greedy is not None:
        # Micro-batches of similar cost form a step.
        loads = np.bincount(greedy, weights=costs, minlength=bins)
        rank = np.empty(bins, np.int64)
        rank[np.argsort(-loads, kind="stable")] = np.arange(bins)
        found.append(rank[greedy])
    return min(found, key=lambda placed: _largest(placed, costs, shape), default=None)


def _largest(placed: Int64Array, costs: Int64Array, shape: tuple[int, int]) -> int:
    loads = sums(costs, placed, shape[0] * shape[1])
    return int(loads.reshape(shape).max(axis=1).sum())


def _solve(
    lengths: Int64Array,
    costs: Int64Array,
    shape: tuple[int, int],
    max_tokens: int,
    time_limit: float,
    bound: int,
    largest: int | None,
) -> tuple[Int64Array | None, float, bool]:
    """Runs the solver for a packing better than `largest`.

    Returns:
        A packing or None; a lower bound of the sum of largest costs; whether the search is over.
    """
    try:
        from scipy.optimize import milp
    except ModuleNotFoundError as error:
        raise ImportError("exact_packing needs SciPy: pip install 'evenstep[bench]'") from error
    bins, count = shape[0] * shape[1], len(lengths)
    order = np.argsort(-costs, kind="stable")
    scale = bound / shape[0]  # makes coefficients about 1, as the solver's tolerances expect
    program = _program(
        lengths[order] / max_tokens,
        costs[order] / scale,
        shape,
        lowest=bound / scale,
        highest=largest / scale if largest is not None else np.inf,
    )
    result: Any = milp(**program, options={"time_limit": time_limit, "mip_rel_gap": 0.0})
    proven = result.mip_dual_bound * scale if result.mip_dual_bound is not None else 0.0
    if not math.isfinite(proven):
        proven = 0.0
    # 0: solved. 2: infeasible, so nothing is better than what is known.
    finished = result.status == 0 or (result.status == 2 and largest is not None)
    if result.x is None:
        return None, proven, finished
    placed = np.empty(count, np.int64)
    placed[order] = result.x[: count * bins].reshape(count, bins).argmax(axis=1)
    # The solver computes in floating point; a packing is accepted only if it holds exactly.
    if np.bincount(placed, weights=lengths, minlength=bins).max() > max_tokens:
        return None, 0.0, False
    return placed, proven, finished


def _program(
    lengths: Float64Array,
    costs: Float64Array,
    shape: tuple[int, int],
    *,
    lowest: float,
    highest: float,
) -> dict[str, Any]:
    """Arguments of `scipy.optimize.milp`.

    For two documents, one step and two micro-batches the variables are x00, x01, x10, x11 (document
    k is in micro-batch j) and the largest cost m:

        minimise m, with   x00 + x01 = 1,   x10 + x11 = 1                   each document once
                           lengths[0] x0j + lengths[1] x1j <= 1             for each j: the cap
                           costs[0] x0j + costs[1] x1j <= m                 for each j
                           x01 = 0                                          symmetry, see below

    Args:
        lengths: [documents] in units of the cap.
        costs: [documents] descending.
        lowest, highest: bounds of the sum of largest costs.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.sparse import csr_array

    steps, micro_batches = shape
    bins, count = steps * micro_batches, len(lengths)
    cells = count * bins
    width = cells + steps  # variables: k * bins + j for document k in bin j; then one per step
    cell = np.arange(cells)
    document, column = cell // bins, cell % bins  # [cells]
    all_bins = np.arange(bins)

    each_once = csr_array((np.ones(cells), (document, cell)), (count, width))
    tokens = csr_array((lengths[document], (column, cell)), (bins, width))
    values = np.concatenate([costs[document], -np.ones(bins)])
    rows = np.concatenate([column, all_bins])
    columns = np.concatenate([cell, cells + all_bins // micro_batches])
    under_largest = csr_array((values, (rows, columns)), (bins, width))
    goal = np.concatenate([np.zeros(cells), np.ones(steps)])
    # Micro-batches of a step are interchangeable, and so are steps: they are numbered in the order
    # in which documents come to them. Then before micro-batch m of step b gets a document, at least
    # b + m others have been placed.
    symmetric = (column // micro_batches + column % micro_batches > document).astype(np.float64)
    return {
        "c": goal,
        "integrality": np.concatenate([np.ones(cells), np.zeros(steps)]),
        "bounds": Bounds(np.zeros(width), np.concatenate([1 - symmetric, np.full(steps, highest)])),
        "constraints": [
            LinearConstraint(each_once, 1, 1),
            LinearConstraint(tokens, -np.inf, 1),
            LinearConstraint(under_largest, -np.inf, 0),
            LinearConstraint(csr_array(goal[None]), lowest, highest),
        ],
    }
