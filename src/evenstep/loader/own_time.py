"""How long this rank itself takes for its steps, before it waits for the others.

From when the trainer has the batch until the gradients of the model are complete: a hook on its
first parameter sees that, whose gradient is the last of a backward pass. Under DDP ranks wait for
each other after it. On a CUDA device events tell it, which nobody waits for. Where a backward pass
waits for others, as under FSDP, all ranks seem to take as long, or nothing is measured: no rank is
found to be slow.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import StepInfo
from evenstep.protocol.slow_ranks import BLOCK, UNTIMED, WINDOW, SlowRank, SlowRanks, pace_of

_Stamp = float | torch.cuda.Event


@dataclass
class _Update:
    """Steps of an update, timed together: some trainers take them all before the first is run."""

    block: int
    steps: int = 0
    cost: float = 0.0
    counts: bool = True
    """Its cost says what this rank computes."""
    spans: list[tuple[_Stamp, _Stamp]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        events = [each for span in self.spans for each in span if not isinstance(each, float)]
        return all(each.query() for each in events)  # type: ignore[no-untyped-call]

    @property
    def nanoseconds(self) -> float:
        return sum(_between(*span) for span in self.spans)


class OwnTime:
    """Of one loader, in the trainer process. Nothing is measured before `watch`."""

    def __init__(self) -> None:
        self.pace = UNTIMED
        """For all ranks to be told."""
        self._ranks = SlowRanks()
        self._parameter: weakref.ref[torch.Tensor] | None = None
        self._hook: torch.utils.hooks.RemovableHandle | None = None
        self._stamp: _Stamp | None = None  # when the trainer got its batch
        self._end: _Stamp | None = None  # when gradients were last complete since
        self._open: _Update | None = None
        self._done: deque[_Update] = deque()  # whose time is not known yet
        self._steps = 0
        self._begins: list[tuple[int, int]] = []
        """Epoch and step at which each block begins."""
        self._timed: deque[list[tuple[float, float]]] = deque([[]], maxlen=WINDOW // BLOCK + 1)
        """Of the last blocks and the one under way, what `pace_of` takes."""
        self._block = 0

    def watch(self, model: torch.nn.Module) -> None:
        """Times the steps of `model` from the next one on, in place of any model before."""
        trained = (each for each in model.parameters() if each.requires_grad and each.is_leaf)
        if (parameter := next(trained, None)) is None:
            return
        if self._hook is not None:
            self._hook.remove()
        this = weakref.ref(self)

        def complete(parameter: torch.Tensor) -> None:
            if (own := this()) is not None and own._stamp is not None:
                own._end = _now(parameter)

        self._parameter = weakref.ref(parameter)
        register = parameter.register_post_accumulate_grad_hook
        self._hook = register(complete)  # type: ignore[no-untyped-call]

    @property
    def slow(self) -> tuple[SlowRank, ...]:
        """See `StepInfo.slow`; none until it is known."""
        return self._ranks.slow or ()

    def compare(self, paces: Int64Array) -> None:
        """Ranks have told their paces."""
        if self._begins:
            self._ranks.add(paces, self._begins)

    def handed_out(self, step: StepInfo) -> StepInfo:
        """The trainer gets the step, here with `StepInfo.slow` where it is known."""
        update = self._open
        if update is not None and self._stamp is not None and self._end is not None:
            update.spans.append((self._stamp, self._end))
        parameter = None if self._parameter is None else self._parameter()
        self._stamp, self._end = None if parameter is None else _now(parameter), None
        if update is None or step.micro_step == 0:
            if update is not None:
                self._done.append(update)
            while self._done and self._done[0].is_known:
                self._add(self._done.popleft())
            if self._steps >= BLOCK * len(self._begins):
                self._begins.append((step.epoch, step.step))
            self._open = update = _Update(len(self._begins) - 1)
        self._steps += 1
        update.steps += 1
        update.cost += step.cost
        # Of a filler nothing is known; without lengths a sample counts as a token.
        update.counts &= not step.filler and step.tokens != step.samples
        return step if self._ranks.slow is None else replace(step, slow=self._ranks.slow)

    def left(self) -> None:
        """A pass ends, or is left: what is open is not timed."""
        self._open = self._stamp = self._end = None

    def _add(self, update: _Update) -> None:
        if update.block > self._block:
            self._block = update.block
            self.pace = pace_of(self._block, [np.array(each).T for each in self._timed])
            self._timed.append([])
        nanoseconds = update.nanoseconds
        if update.counts and nanoseconds > 0 and update.cost > 0:
            self._timed[-1].append((nanoseconds / update.steps, nanoseconds / update.cost))


def _now(parameter: torch.Tensor) -> _Stamp | None:
    """None where its device cannot be timed."""
    if parameter.device.type == "cpu":
        return time.perf_counter()
    if not parameter.is_cuda or torch.cuda.is_current_stream_capturing():
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(parameter.device))
    return event


def _between(begin: _Stamp, end: _Stamp) -> float:
    """Nanoseconds; 0 where the model has moved to another device in between."""
    if isinstance(begin, float) or isinstance(end, float):
        return (end - begin) * 1e9 if isinstance(begin, float) and isinstance(end, float) else 0.0
    return float(begin.elapsed_time(end)) * 1e6
