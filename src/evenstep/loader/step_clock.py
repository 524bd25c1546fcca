"""How long steps take, measured while training, and what that says of the policy's cost.

A step lasts from when the trainer has its batch until it asks for the next; on a CUDA device, from
the work queued before the batch to that queued before the next, told by events that nobody waits
for. Where ranks wait at the end of an update, its steps are timed together. The first steps are
left out, and those before which the trainer waited for data.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from evenstep.arrays import Float64Array
from evenstep.batch.step_info import StepInfo
from evenstep.cost.models import PAIR_UNIT, FittedCost, MeasuredCost
from evenstep.cost.step_times import FittedTimes, StepTimes, fit_times, imbalance_of
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.even.timed import counts
from evenstep.plan.policy import Policy

logger = logging.getLogger("evenstep")

_WARM_UP = 10
"""Times at the beginning that say nothing."""
_FIRST = 100
"""Times after which the cost is looked for; then each time that they have doubled, or `_KEPT`."""
_KEPT = 1000
_WAITED = 0.05
"""Share of a time that waiting for data may have."""
_SURE = 6.0
"""Logarithm of how much likelier a cost must be than that in use to be named."""
_OFF, _GAIN = math.log(1.1), 0.01
_ERROR = 0.1
"""Times that are further from a cost than this share are of something else."""


@dataclass
class _Timed:
    """Steps that are timed together. Where ranks wait at their end, they count as one."""

    tokens: list[Float64Array] = field(default_factory=list)
    """By step, [ranks]."""
    pairs: list[Float64Array] = field(default_factory=list)
    waited: float = 0.0
    seconds: float = 0.0
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None


class StepClock:
    """Of one loader, in the trainer process."""

    def __init__(self, policy: Policy, rank: int, pair_cost: int = 0) -> None:
        """
        Args:
            pair_cost: that was measured before, in `PAIR_UNIT` tokens; 0 if none was.
        """
        self.fitted: FittedTimes | None = None
        self.pair_cost = 0
        """For the policy to use, on rank 0 of a job that measures its cost, in `PAIR_UNIT` tokens;
        0 before it is known."""
        self._policy = policy
        self._rank = rank
        self._ratio = pair_cost * PAIR_UNIT or _ratio_of(policy)
        self._open: _Timed | None = None
        self._begun: deque[_Timed] = deque()  # whose time is not known yet
        self._known: deque[_Timed] = deque(maxlen=_KEPT)
        self._count = -_WARM_UP
        self._next = _FIRST // 2 if isinstance(policy.cost, MeasuredCost) else _FIRST
        self._asked = self._handed = 0.0
        self._told = False

    def asked(self) -> None:
        """The trainer asks for its next step."""
        self._asked = time.perf_counter()
        if self._open is not None:
            self._open.seconds += self._asked - self._handed

    def handed_out(self, step: StepInfo) -> StepInfo:
        """The trainer gets the step, here with `StepInfo.imbalance_measured` where it is known."""
        self._handed = time.perf_counter()
        tokens = step.totals.padded_tokens.astype(np.float64)
        if self._policy.packed:
            pairs = tokens * step.totals.length_mean
        else:
            pairs = tokens**2 / np.maximum(step.totals.samples, 1)
        timed = self._open
        if timed is None or step.micro_step == 0:
            timed = self._begin()
        if step.sync == "update" and timed.tokens:
            tokens, pairs = tokens + timed.tokens.pop(), pairs + timed.pairs.pop()
        timed.tokens.append(tokens)
        timed.pairs.append(pairs)
        timed.waited += self._handed - self._asked
        if self.fitted is None:
            return step
        measured = imbalance_of(self.fitted.cost, tokens, pairs)
        return replace(step, imbalance_measured=measured)

    def left(self) -> None:
        """A pass ends, or is left: what is open is not timed."""
        self._open = None

    def _begin(self) -> _Timed:
        """Closes what is open, and begins anew."""
        event = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        if self._open is not None:
            self._open.end = event
            self._begun.append(self._open)
        self._open = begun = _Timed(begin=event)
        while self._begun:
            end = self._begun[0].end
            if end is not None and not end.query():  # type: ignore[no-untyped-call]
                break
            self._add(self._begun.popleft())
        return begun

    def _add(self, timed: _Timed) -> None:
        if timed.begin is not None and timed.end is not None:
            timed.seconds = timed.begin.elapsed_time(timed.end) / 1e3
        if timed.waited > _WAITED * timed.seconds:
            return
        self._count += 1
        if self._count <= 0:
            return
        self._known.append(timed)
        if self._count == self._next:
            self._next += min(self._next, _KEPT)
            self._fit()

    def _fit(self) -> None:
        begins = np.cumsum([0, *(len(each.tokens) for each in self._known)])[:-1]
        tokens, pairs = (
            np.stack([row for each in self._known for row in getattr(each, name)])
            for name in ("tokens", "pairs")
        )
        seconds = np.array([each.seconds for each in self._known])
        times = StepTimes(tokens=tokens, pairs=pairs, begins=begins, seconds=seconds)
        fitted = fit_times(times, self._ratio)
        if fitted.error > _ERROR:
            return
        self.fitted = fitted
        ratio = fitted.cost.per_pair / fitted.cost.per_token
        off = abs(math.log(max(ratio, 1e-9) / max(self._ratio, 1e-9)))
        if self._rank or fitted.surer <= _SURE or off <= _OFF:
            return
        if isinstance(self._policy.cost, MeasuredCost):
            self._ratio, self.pair_cost = ratio, round(ratio / PAIR_UNIT)
            said = _tokens(ratio)
            logger.info("steps are timed: attention takes as long as all else at %s", said)
        elif isinstance(self._policy, Even):
            self._warn(times, fitted.cost, ratio)

    def _warn(self, times: StepTimes, found: FittedCost, ratio: float) -> None:
        """Says, once, that another cost makes steps more even."""
        used = FittedCost(per_group=0.0, per_token=1.0, per_pair=self._ratio)
        predicted, measured = (
            imbalance_of(cost, times.tokens, times.pairs) for cost in (used, found)
        )
        if self._told or measured - predicted < _GAIN:
            return
        self._told = True
        logger.warning(
            "steps are %.1f%% uneven in time: attention takes as long as all else at %s, and the "
            "policy's cost says at %s; pass cost=evenstep.FittedCost(per_group=%.3g, "
            "per_token=%.3g, per_pair=%.3g), or cost=evenstep.MeasuredCost()",
            100 * (measured - 1),
            _tokens(ratio),
            _tokens(self._ratio),
            found.per_group,
            found.per_token,
            found.per_pair,
        )


def _tokens(ratio: float) -> str:
    return f"{1 / ratio:,.0f} tokens" if ratio else "no number of tokens"


def _ratio_of(policy: Policy) -> float:
    """What a pair costs over what a token costs, of the policy's cost."""
    length = np.array([1 << 20], np.int64)
    counted = int(counts(policy.cost, length, packed=policy.packed)[0])
    return (counted / int(length[0]) - 1) / int(length[0])
