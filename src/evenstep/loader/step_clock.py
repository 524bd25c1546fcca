"""How long steps take, measured while training, and what that says of the policy's cost.

A step lasts from when the trainer has its batch until it asks for the next; on a CUDA device, from
the work queued before the batch to that queued before the next, told by events that nobody waits
for. The steps of an update are timed together: each lasts as long as its slowest rank or, where
ranks wait at the end of the update, all as long as the rank that is slowest over them. The first
steps are left out, and those before which the trainer waited for data.
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
from evenstep.batch.step_info import RankLoads, StepInfo
from evenstep.cost import Cost, FittedCost, VisionLanguageCost
from evenstep.cost.fitting import FittedTimes, StepTimes, fit_times, imbalance_at
from evenstep.cost.vision_language import RATIO_UNIT, UNMEASURED, Ratios, is_measured
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.even.timed import counts, token_cost
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
    """Steps of an update, timed together."""

    loads: list[Float64Array] = field(default_factory=list)
    """By wait, [4, ranks]: see `StepTimes.loads`."""
    waited: float = 0.0
    seconds: float = 0.0
    begin: torch.cuda.Event | None = None
    end: torch.cuda.Event | None = None


class StepClock:
    """Of one loader, in the trainer process."""

    def __init__(self, policy: Policy, rank: int, ratios: Ratios = UNMEASURED) -> None:
        """
        Args:
            ratios: that were measured before.
        """
        self.fitted: FittedTimes | None = None
        self.ratios = UNMEASURED
        """For the policy to use, on rank 0 of a job that measures its cost."""
        self._policy = policy
        self._rank = rank
        given = ratios[0] * RATIO_UNIT, ratios[1] * RATIO_UNIT
        self._used = _ratios_of(policy) if ratios == UNMEASURED else given
        self._measures = is_measured(policy.cost)
        self._open: _Timed | None = None
        self._begun: deque[_Timed] = deque()  # whose time is not known yet
        self._known: deque[_Timed] = deque(maxlen=_KEPT)
        self._count = -_WARM_UP
        self._next = _FIRST // 2 if self._measures else _FIRST
        self._asked = self._handed = 0.0
        self._told = False

    def note_request(self) -> None:
        """The trainer asks for its next step."""
        self._asked = time.perf_counter()
        if self._open is not None:
            self._open.seconds += self._asked - self._handed

    def handed_out(self, step: StepInfo) -> StepInfo:
        """The trainer gets the step, here with `StepInfo.imbalance_measured` where it is known."""
        self._handed = time.perf_counter()
        timed = self._open
        if timed is None or step.micro_step == 0:
            timed = self._begin()
        timed.waited += self._handed - self._asked
        loads = self._loads(step)
        if step.ends_wait:
            timed.loads.append(loads)
        if self.fitted is None:
            return step
        return replace(step, imbalance_measured=self.fitted.imbalance(loads))

    def left(self) -> None:
        """A pass ends, or is left: what is open is not timed."""
        self._open = None

    def _loads(self, step: StepInfo) -> Float64Array:
        """[4, ranks] what ranks compute between the waits that the step is between."""
        groups = max(len(step.loss_scales), 1)
        loads = step.loads or RankLoads.of(step.totals, packed=self._policy.packed, groups=groups)
        patches, cost = loads.patches, self._policy.cost
        if isinstance(cost, VisionLanguageCost):
            patches = loads.vision_cost / cost.per_patch  # with their pairs
        return np.stack([loads.tokens, loads.pairs, patches, loads.groups])

    def _begin(self) -> _Timed:
        """Closes what is open, and begins anew."""
        event = None
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        if self._open is not None and self._open.loads:
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
        times = StepTimes(
            loads=np.stack([loads for each in self._known for loads in each.loads], axis=1),
            begins=np.cumsum([0, *(len(each.loads) for each in self._known)])[:-1],
            seconds=np.array([each.seconds for each in self._known]),
        )
        fitted = fit_times(times, self._used)
        if fitted.error > _ERROR:
            return
        self.fitted = fitted
        off = max(
            abs(math.log(max(found, 1e-9) / max(used, 1e-9)))
            for found, used in zip(fitted.ratios, self._used)
        )
        if self._rank or fitted.surer <= _SURE or off <= _OFF:
            return
        if self._measures:
            self._used = fitted.ratios
            pair, patch = (round(ratio / RATIO_UNIT) for ratio in fitted.ratios)
            self.ratios = pair, patch
            logger.info("steps are timed: %s", _said(fitted.ratios))
        elif isinstance(self._policy, (Even, WorkloadPacking)):
            self._warn(times, fitted)

    def _warn(self, times: StepTimes, found: FittedTimes) -> None:
        """Says, once, that another cost makes steps more even; or, on a single rank, fills groups
        with the time that is meant."""
        alone = times.loads.shape[2] == 1
        predicted = imbalance_at((1.0, *self._used, 0.0), times.loads)
        measured = found.imbalance(times.loads)
        if self._told or (measured - predicted < _GAIN and not alone):
            return
        self._told = True
        logger.warning(
            "%s: %s, and the policy's cost says %s; pass cost=evenstep.cost.%r, or a MeasuredCost",
            "steps take another time than was predicted"
            if alone
            else f"steps are {100 * (measured - 1):.1f}% uneven in time",
            _said(found.ratios),
            _said(self._used),
            self._cost(found),
        )

    def _cost(self, found: FittedTimes) -> Cost:
        """What was found, for a policy to be given."""
        cost, token, (pair, patch) = self._policy.cost, found.per_token, found.ratios
        language = _rounded(found.per_group, token, pair * token)
        if not patch:
            return language
        if not isinstance(cost, VisionLanguageCost):
            return VisionLanguageCost(language=language, vision=_rounded(0.0, patch * token, 0.0))
        scale, tower = patch * token / cost.per_patch, cost.vision
        vision = _rounded(0.0, scale * tower.per_token, scale * tower.per_pair)
        return replace(cost, language=language, vision=vision)


def _rounded(per_group: float, per_token: float, per_pair: float) -> FittedCost:
    """To three digits."""
    values = [float(f"{value:.3g}") for value in (per_group, per_token, per_pair)]
    return FittedCost(per_group=values[0], per_token=values[1], per_pair=values[2])


def _said(ratios: tuple[float, float]) -> str:
    """Ratios of a pair and of a patch to a token, in words."""
    pair, patch = ratios
    length = f"{1 / pair:,.0f} tokens" if pair else "no length"
    tower = f", and a patch as long as {patch:.3g} tokens" if patch else ""
    return f"attention takes as long as all else at {length}{tower}"


def _ratios_of(policy: Policy) -> tuple[float, float]:
    """What a pair and a patch cost over what a token costs, of the policy's cost."""
    length, cost = np.array([1 << 20], np.int64), policy.cost
    counted = int(counts(cost, length, packed=policy.packed)[0])
    pair = (counted / int(length[0]) - 1) / int(length[0])
    token = token_cost(cost, packed=policy.packed)
    return pair, cost.per_patch / token if isinstance(cost, VisionLanguageCost) and token else 0.0
