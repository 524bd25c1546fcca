"""Limits and choices of the planners of packed micro-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.packing.document_cost import DocumentCost

_NEVER = 1 << 40
"""An age in steps that no document reaches."""


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """A step has at most `micro_batches` micro-batches of at most `max_tokens` each."""

    context: int
    """Tokens that a micro-batch holds on average."""
    micro_batches: int
    max_tokens: int | None = None
    """Tokens that no micro-batch exceeds, a limit of memory. None is 1.25 x context. It must be at
    least 1.1 x context: with less room, micro-batches with a long document cannot be balanced, and
    documents arrive about as fast as they are placed, so some wait for ever."""
    thresholds: tuple[int, ...] = ()
    """Lengths from which on a document waits in the first, second, ... queue for others like it,
    ascending; see `auto_thresholds`. Without any, no document waits for others."""
    max_delay: int | None = 64
    """Steps after which a document is planned before all others, whatever that does to balance; it
    waits longer only while others as old take all the room. None: no limit. One rank alone hardly
    reaches the default; ranks that wait for each other's outliers do."""
    cost: DocumentCost = field(default_factory=DocumentCost)

    def __post_init__(self) -> None:
        check_given(context=self.context, micro_batches=self.micro_batches)
        check_at_least(1, context=self.context, micro_batches=self.micro_batches)
        check_at_least(0, max_delay=self.max_delay)
        check_at_least(1, max_tokens=self.max_tokens)
        if 10 * self.cap < 11 * self.context:
            raise ConfigurationError(
                f"max_tokens={self.max_tokens} must be at least 1.1 x context, "
                f"{-(-11 * self.context // 10):,}, or long documents cannot be balanced and some "
                "wait for ever; raise max_tokens or lower context"
            )
        bounds = (0, *self.thresholds)
        if any(low >= high for low, high in pairwise(bounds)):
            raise ConfigurationError(
                f"thresholds={self.thresholds} must be positive and ascending, each length once"
            )
        self.cost.check_range(self.cap * self.micro_batches)

    @property
    def cap(self) -> int:
        """`max_tokens`, or its default."""
        if self.max_tokens is None:
            return max(5 * self.context // 4, -(-11 * self.context // 10))
        return self.max_tokens

    def check(self, lengths: Int64Array) -> None:
        """Raises `SampleError` if a document fits in no micro-batch."""
        if len(lengths) and int(lengths.max()) > self.cap:
            longest = int(lengths.argmax())
            raise SampleError(
                f"document {longest} has {lengths[longest]:,} tokens, over the {self.cap:,} of a "
                "micro-batch; split or truncate it (`cut_long`), or raise max_tokens"
            )

    def overdue(self, ages: Int64Array) -> npt.NDArray[np.bool_]:
        """[documents] whether a document must not wait any longer."""
        if self.max_delay is None:
            return np.zeros(len(ages), np.bool_)
        late: npt.NDArray[np.bool_] = ages >= self.max_delay
        return late


@dataclass(frozen=True, kw_only=True)
class SteadyOptions(PackingOptions):
    """Options of the planner without queues. `thresholds` may hold one length, from which on a
    document is long; by default it is computed from the documents that wait."""

    step_tokens: int | None = None
    """Tokens that a step holds at most. None is 1.03 x micro_batches x context: with fewer than
    arrive, ever more documents would wait."""
    max_delay: int | None = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self.cap, step_tokens=self.step_tokens)
        if len(self.thresholds) > 1:
            raise ConfigurationError(
                f"thresholds={self.thresholds}: the steady planner has no queues and takes one "
                "length at most; leave thresholds out"
            )

    @property
    def step_cap(self) -> int:
        """`step_tokens`, or its default."""
        if self.step_tokens is None:
            return max(self.micro_batches * self.context * 103 // 100, self.cap)
        return self.step_tokens

    @property
    def patience(self) -> int:
        """Steps after which a long document determines the run: fewer than `max_delay`, since
        several may have to take turns."""
        if self.max_delay is None:
            return _NEVER
        return self.max_delay - min(max(self.max_delay // 8, 1), self.max_delay)
