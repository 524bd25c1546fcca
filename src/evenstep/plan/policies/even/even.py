"""`Even`: equal cost on every rank in every step. The policy to use.

Ranks wait for the one whose group costs most, so a step is well spent if all cost the same. Each
round:

1. Each rank forms the groups of its most urgent samples, old ones and such of which few make a
   group, and sends what they cost and how urgent they are: at most 16, whatever the buffer. Of
   samples longer than a group should be, some are urgent in every round.
2. The most urgent of all ranks are the steps of the round, and their costs its *targets*, the same
   on every rank.
3. Each rank takes for every step, the costliest first, the run of its sorted samples that comes
   closest to the target from below with little padding: see `padded_runs`. What is lost is what a
   group stays below its target; it does not grow with the number of ranks, as it would if the
   largest of many deviations counted.
4. Each rank looks for each step's run in another part of its samples, so that short, middle and
   long ones meet, as in a random batch. Steps are shuffled, alike on all ranks. Where a rank holds
   back more long samples than came, or fewer, both the urgency and the choice of runs make up for
   it: see `padded_round.drift`.

A single rank whose updates have several steps has no other to meet: it trains on all of its window.

A round takes an eighth of the window, so that there is always a choice. At the end of an epoch all
ranks place all that they have in equally many steps: see `last_runs`. Where ranks share one stream,
they are dealt samples on demand, so that they hold equal cost then.

Where ranks wait at the end of an update alone, padded groups of an update are even together: each
rank chooses what its groups cost, see `padded_updates`.

Packed groups are formed by other means: any samples may lie in one group, so all are full and cost
the same: see `packed_round`. A round takes half the window, and what is left at the end is packed
at once, in as many groups as the rank with most of it needs: see `drain_packed`.

Everywhere a sample is as long as the time that it takes: see `timed`.

No sample waits for ever: see `Even.max_wait`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit, VisionLanguageCost
from evenstep.errors import ConfigurationError
from evenstep.plan.fit import START
from evenstep.plan.policies.even.packed_round import PackedRound
from evenstep.plan.policies.even.padded_round import PaddedRound
from evenstep.plan.policies.even.padded_updates import UpdatesRound
from evenstep.plan.policies.even.timed import token_cost
from evenstep.plan.policies.even.two_part_round import TwoPartRound
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.value_checks import AUTO, check_at_least, check_given

_WINDOW = 96
"""Groups that a window should hold: with fewer there is less choice, and more padding."""
_PADDED_WAIT, _PACKED_WAIT = 32, 5
"""Rounds after which a sample is emitted for certain."""


@dataclass(frozen=True)
class Even(Policy):
    """Groups of equal cost on all ranks, under a token budget."""

    max_tokens: int | str
    """No group has more tokens as laid out in memory: after padding (samples x longest), or real
    tokens where `packed`. A longer sample is refused. "auto" finds out while training what fits in
    memory: see `evenstep.loader.memory_watch`."""
    target_tokens: int | None = field(default=None, kw_only=True)
    """Tokens that groups should have; None is `max_tokens`. Set it where a few samples are so long
    that room for them is room for hundreds of the others: a window would hold few groups of those,
    and pad them. A longer sample is a step by itself, which the other ranks match."""
    max_patches: int | None = field(default=None, kw_only=True)
    """Vision patches per group; a single sample above it stays alone."""
    max_images: int | None = field(default=None, kw_only=True)
    """Images, videos and sounds per group; a single sample above it stays alone."""
    max_wait: int | None = field(default=None, kw_only=True)
    """After this many rounds in the window the oldest sample is emitted for certain, at the price
    of some imbalance. So every sample is emitted within ``max_wait + window size`` rounds. None is
    32, or 5 where `packed`: a round takes an eighth of the window, or half of it, so that is about
    four windows, or three; and as the oldest go first, in practice no sample waits 3 rounds more.
    Much lower values cannot be kept, as a window lasts 8 rounds, or 2."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)
    """The time that is made equal; of a `VisionLanguageCost`, that of each part. The memory limits
    hold besides."""
    packed: bool = field(default=False, kw_only=True)
    """Groups are collated without padding, as `PackCollator` does: any samples go together, fill
    `max_tokens`, and cost what ``cost(shapes, packed=True)`` says."""
    sync: str = field(default="step", kw_only=True)
    """When ranks wait for each other: in every "step", as under FSDP or ZeRO-3, or at the end of an
    "update", as under DDP with ``no_sync`` or ZeRO-1. With "update" the groups that a rank has in
    an update take as long together as any other rank's: it may have samples that take longer than a
    full group, and few wait for their like. Padded groups of a cost of two parts, or of one that
    does not grow with their samples, are even in every step all the same. The integrations of
    Hugging Face's Trainer, Accelerate and Lightning set what their job does."""
    spread: bool = field(default=True, kw_only=True)
    """Padded groups of like cost are dealt out so that a step holds long and short samples, as a
    random batch does: see `evenstep.plan.groups`. False lets like lengths meet."""

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens)
        if isinstance(self.max_tokens, str) and self.max_tokens != AUTO:
            raise ConfigurationError(
                f'max_tokens={self.max_tokens!r} must be a number of tokens, or "{AUTO}" for what '
                "fits in memory"
            )
        check_at_least(
            1,
            max_tokens=self._tokens,
            target_tokens=self.target_tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
        )
        check_at_least(0, max_wait=self.max_wait)
        if self.sync not in ("step", "update"):
            raise ConfigurationError(
                f"sync={self.sync!r} must be 'step' or 'update': when ranks wait for each other"
            )
        above = self.fits_memory or (self.target_tokens or 0) > self._tokens
        if self.target_tokens is not None and above:
            raise ConfigurationError(
                f"target_tokens={self.target_tokens} must be at most max_tokens="
                f"{self.max_tokens}, a number"
            )

    @property
    def fits_memory(self) -> bool:
        return isinstance(self.max_tokens, str)

    @property
    def _tokens(self) -> int:
        return START if isinstance(self.max_tokens, str) else self.max_tokens

    @property
    def max_length(self) -> int | None:
        return None if isinstance(self.max_tokens, str) else self.max_tokens

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(
            max_tokens=self._tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
            packed=self.packed,
        )

    @property
    def deals_on_demand(self) -> bool:
        return True

    @property
    def window_tokens(self) -> int:
        return _WINDOW * (self.target_tokens or self._tokens)

    def propose(self, window: Window) -> Proposal:
        return self._round(window).propose(window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        return self._round(proposal.window).settle(proposal, messages, rank)

    def _round(self, window: Window) -> PaddedRound | PackedRound:
        due = _PACKED_WAIT if self.packed else _PADDED_WAIT
        options: dict[str, Any] = {
            "cost": self.cost,
            "target_tokens": self.target_tokens or self._tokens,
            "max_wait": due if self.max_wait is None else self.max_wait,
        }
        if self.packed:
            return PackedRound(**options, limit=self.limit, sync=self.sync)
        options.update(
            max_tokens=self._tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
            spread=self.spread,
        )
        if self.max_images is None and not isinstance(self.cost, VisionLanguageCost):
            waits = self.sync == "update" and min(window.accumulate, window.ranks) > 1
            grows = token_cost(self.cost, packed=False) > 0
            return (UpdatesRound if waits and grows else PaddedRound)(**options)
        return TwoPartRound(**options)
