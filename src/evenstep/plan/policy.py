"""The contract between a policy and the code that runs it.

A policy is a frozen dataclass of options and two pure functions. Each round, every rank calls
`propose` on its own window, all ranks exchange the proposals' messages, and every rank calls
`settle` on all messages. The outcome is a `Plan` for this rank, in which every rank has the same
number of steps, so that nothing further needs to be agreed.

The code that runs a policy may rely on this: a plan names every window position at most once; a
rank that proposed at least one sample gets exactly as many steps as every other such rank; groups
never break the policy's memory limit; and at least one sample is planned in every round in which
any rank proposed one.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit, VisionLanguageCost
from evenstep.errors import WrongTypeError
from evenstep.plan.groups import Groups
from evenstep.plan.value_checks import NamesArguments, plain_value, shorten


@dataclass(frozen=True, kw_only=True)
class Window:
    """The samples that one rank has buffered when a round begins, in order of arrival."""

    lengths: Int64Array
    """[samples] tokens of each sample, positive."""
    ages: Int64Array
    """[samples] rounds in which the sample was in the window and not planned."""
    patches: Int64Array | None = None
    """[samples] vision patches, where they are counted."""
    images: Int64Array | None = None
    """[samples] images, videos and sounds, where patches are counted."""
    patch_pairs: Int64Array | None = None
    """[samples] sum over images of their squared patches, where patches are counted."""
    exhausted: bool = False
    """True when the rank's source has ended: nothing will be added to this window."""
    accumulate: int = 1
    """Steps whose gradients are added up before the optimizer steps."""
    seed: int = 0
    epoch: int = 0
    round: int = 0
    step: int = 0
    """Steps of the epoch before this round: it may begin in the middle of an update."""
    ranks: int = 1
    """All data-parallel ranks."""
    seen_lengths: tuple[int, int] = (0, 0)
    """Tokens, and the sum of squared lengths, of all samples that windows of this rank have held in
    the epoch, those of this one included."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def vision(self) -> Int64Array | None:
        """[3, samples] patches, images and patch pairs; None where patches are not counted. What is
        not given is 0."""
        if self.patches is None:
            return None
        none = np.zeros(len(self), np.int64)
        given = (self.patches, self.images, self.patch_pairs)
        return np.stack([none if each is None else each for each in given])


@dataclass(frozen=True)
class Proposal:
    """One rank's side of a round before the exchange."""

    message: Int64Array
    """[k] int64 for the other ranks; k is the same on all ranks."""
    groups: Groups
    """This rank's own candidate groups of window positions."""
    window: Window


@dataclass(frozen=True)
class Plan:
    """One rank's side of a round after the exchange."""

    groups: Groups
    """Groups of window positions, in the order in which they are trained on."""
    dropped: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Window positions that will never be emitted. Only `FixedBatch(drop_last=True)` does this."""
    steps: Int64Array | None = None
    """[steps + 1] step s is the groups from ``steps[s]`` to ``steps[s + 1]``, its micro-batches, at
    least one. None where every group is a step."""

    @property
    def step_offsets(self) -> Int64Array:
        """[steps + 1] `steps`, or where that is None one group for each step."""
        if self.steps is None:
            return np.arange(len(self.groups) + 1, dtype=np.int64)
        return self.steps

    def first(self, steps: int | None) -> Plan:
        """The plan without what follows its first steps; all of it where that is None."""
        if steps is None or steps >= len(self.step_offsets) - 1:
            return self
        offsets = self.step_offsets[: steps + 1]
        ends = self.groups.offsets[: int(offsets[-1]) + 1]
        kept = Groups(self.groups.members[: int(ends[-1])], ends)
        return Plan(kept, self.dropped, None if self.steps is None else offsets)


class Policy(NamesArguments, abc.ABC):
    """How groups are formed. Subclasses are frozen dataclasses; all state is in the window."""

    cost: Cost = UNKNOWN_MODEL
    """The cost that `StepInfo.cost` and all reports of imbalance are measured in."""

    packed: bool = False
    """Whether groups are collated without padding."""

    sync: str = "step"
    """When ranks wait for each other: in every "step", or at the end of an "update"."""

    micro_batches: int = 1
    """Groups of a step that a rank trains on one after the other, before one optimizer step. Where
    it is more than 1, a batch is a list of that many collated groups."""

    context_parallel: int = 1
    """Neighbouring ranks that prepare the same samples and share every micro-batch, each of which
    holds a shard of it: see `WorkloadPacking.shard`."""

    needs_lengths: bool = True
    """Whether samples must have a length. Where False, one without tokens counts as one."""

    looks_ahead: bool = True
    """Whether windows may be smaller than `window_size`, so that all ranks run out together. False
    where the number of samples in a window decides what is in a group."""

    @property
    def limit(self) -> MemoryLimit | None:
        """Limit that no group of two or more samples may exceed; checked every round."""
        return None

    @property
    def max_length(self) -> int | None:
        """Longest sample accepted, in tokens; None for no limit."""
        return None if self.limit is None else self.limit.max_tokens

    @property
    def fits_memory(self) -> bool:
        """Whether ``max_tokens`` is found out while training: see `evenstep.plan.fit`."""
        return False

    @property
    def counts_patches(self) -> bool:
        """Whether windows must carry `Window.patches`, `images` and `patch_pairs`: where they are
        limited, or the cost has a part of a vision tower."""
        limited = self.limit is not None and (self.limit.max_patches or self.limit.max_images)
        return bool(limited) or isinstance(self.cost, VisionLanguageCost)

    @property
    def deals_on_demand(self) -> bool:
        """Whether ranks that emit more samples are given more of them, where the ranks share one
        order of the epoch. Such a policy drops no sample. False gives all ranks equally many."""
        return False

    @property
    def window_tokens(self) -> int | None:
        """Tokens that a window should hold under ``buffer_size="auto"``; None where a number of
        samples decides."""
        return None

    def window_size(self, buffer_size: int) -> int:
        """Samples that a rank gathers before a round, if it may buffer `buffer_size`."""
        return buffer_size

    @abc.abstractmethod
    def propose(self, window: Window) -> Proposal:
        """This rank's side of a round before the exchange. `window` is not empty, and full unless
        exhausted."""

    @abc.abstractmethod
    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        """This rank's plan, given all ranks' messages.

        Args:
            proposal: of `propose` on this rank in this round.
            messages: [ranks, k] int64; the row of a rank that has nothing left is all zeros.
            rank: this rank's row.
        """

    @property
    def name(self) -> str:
        """The name used on the command line: ``TokenBudget`` is ``token-budget``."""
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return words.lstrip("-")

    def options(self) -> Mapping[str, Any]:
        """The policy's fields as text and numbers."""
        return {
            f.name: plain_value(getattr(self, f.name))
            for f in dataclasses.fields(self)  # type: ignore[arg-type]
        }

    @property
    def fingerprint(self) -> str:
        """Equal for equal policies. Ranks compare it, and a loader with its checkpoint."""
        return f"{type(self).__name__}{dict(self.options())}"


def check_policy(policy: object, other: str) -> Policy:
    """
    Args:
        other: what may be passed in place of a policy.

    Raises:
        WrongTypeError: it is none.
    """
    if not isinstance(policy, Policy):
        raise WrongTypeError(
            f"policy={shorten(policy)} is no policy: pass policy=evenstep.Even(max_tokens=...) or "
            f"{other}"
        )
    return policy
