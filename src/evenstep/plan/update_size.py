"""How many groups an optimizer update has, and how large they are.

A user fixes the tokens of an update, and `max_tokens` is what fits in memory. In between there is a
choice: an update of 16,384 tokens on one rank may be one group of 16,384, or 16 groups of 1,024.
Padded groups hold samples of like length, so the first teaches one length, the second is like a
random batch; but very small groups leave the accelerator idle. So an update has at least `GROUPS`
groups on all ranks together, unless they would be smaller than the accelerator needs.

Packed groups may hold any samples, so they are as large as memory allows.

All numbers are integers, so that all ranks find the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import FittedCost
from evenstep.cost.vision_language import language_part
from evenstep.errors import ConfigurationError
from evenstep.plan.fit import START
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.even.timed import counts
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import AUTO, check_at_least

GROUPS = 8
"""Groups of an update on all ranks together: see docs/learning.md for what fewer cost."""
LEAST_TOKENS = 512
"""Tokens of a group that keep an accelerator busy, where none were measured."""
_PACKED, _ALONE, _PADDED = 104, 94, 84
"""Hundredths of what full groups could have, with which an update has the steps that it needs:
packed, of one rank alone, and padded of several. See `evenstep.protocol.agreed`. Up to 5 % less
than asked is taken for a step less."""
_OVERHEAD = 9
"""A measured group takes at least so many times what it costs before its first token."""
_ONE = 1 << 32
_UNLIMITED = 1 << 31


@dataclass(frozen=True, kw_only=True)
class UpdateSize:
    """An update of a rank."""

    policy: Policy
    """Forms groups of the size that the update needs."""
    accumulate: int
    """Groups of a rank."""

    @classmethod
    def of(
        cls, policy: Policy, update_tokens: int | str, *, ranks: int, lengths: Int64Array | None
    ) -> UpdateSize:
        """
        Args:
            update_tokens: real tokens of an update on all ranks together. "auto" is what a full
                group of each rank holds, which then are several smaller ones where ranks are few.
            ranks: data-parallel ranks.
            lengths: [samples] tokens of some samples; None where none are known.

        Raises:
            ConfigurationError: the policy limits neither tokens nor samples of a group.
        """
        check_update_tokens(update_tokens)
        if nothing_to_choose(policy, update_tokens, ranks):
            return cls(policy=policy, accumulate=1)
        if isinstance(update_tokens, str):
            update_tokens = full_update(policy, ranks, lengths)
        held = _Held(policy, ranks, lengths)
        most = held.most
        if not isinstance(policy, Even):
            # The nearest: groups are as large as they can be.
            nearest = (2 * update_tokens + ranks * most) // (2 * ranks * most)
            return cls(policy=policy, accumulate=max(1, nearest))
        full = _PACKED
        if not policy.packed and ranks > 1:
            full = _PADDED
        elif not policy.packed and 100 * update_tokens > _PACKED * most:  # not two halves of one
            full = _ALONE
        fewest = -(-100 * update_tokens // (full * ranks * most))
        wanted = 1 if policy.packed else -(-GROUPS // ranks)
        busy = held.tokens(min(least_tokens(policy), held.limit))
        accumulate = max(fewest, min(wanted, update_tokens // (ranks * busy)), 1)
        target = held.smallest(-(-update_tokens // (ranks * accumulate)))
        while accumulate > max(fewest, 1) and not held.matches(target):
            accumulate -= 1
            target = held.smallest(-(-update_tokens // (ranks * accumulate)))
        if target >= held.limit:
            return cls(policy=policy, accumulate=accumulate)
        return cls(policy=replace(policy, target_tokens=target), accumulate=accumulate)


def sizes_of(
    policy: Even, update_tokens: int, *, ranks: int, lengths: Int64Array | None
) -> tuple[tuple[int, int], ...]:
    """How many steps an update may have, and the tokens of their groups, where what fits is not
    known: from the fewest steps on, as `UpdateSize.of` with no limit, down to groups of `START`
    tokens. Arguments as there."""
    check_update_tokens(update_tokens)
    policy = replace(policy, max_tokens=_UNLIMITED)
    held = _Held(policy, ranks, lengths)
    steps = UpdateSize.of(policy, update_tokens, ranks=ranks, lengths=lengths).accumulate
    sizes: list[tuple[int, int]] = []
    while not sizes or sizes[-1][1] > START:
        sizes.append((steps, held.smallest(-(-update_tokens // (ranks * steps)))))
        steps += -(-steps // 4)
    return tuple(sizes)


def nothing_to_choose(policy: Policy, update_tokens: int | str | None, ranks: int) -> bool:
    """Whether an update is one full group of each rank, whatever lengths the samples have."""
    mixed = not isinstance(policy, Even) or policy.packed or ranks >= GROUPS or policy.fits_memory
    return update_tokens is None or (update_tokens == AUTO and mixed)


def full_update(policy: Policy, ranks: int, lengths: Int64Array | None) -> int:
    """Mean real tokens of an update that is a full group of each rank."""
    return ranks * _Held(policy, ranks, lengths).most


def check_update_tokens(update_tokens: int | str | None) -> None:
    if isinstance(update_tokens, str) and update_tokens != AUTO:
        raise ConfigurationError(
            f'update_tokens={update_tokens!r} must be "{AUTO}" or a number of tokens'
        )
    check_at_least(1, update_tokens=None if isinstance(update_tokens, str) else update_tokens)


def resolve_accumulate(accumulate: int | None, update_tokens: int | str | None) -> int:
    """Steps of an update, where `update_tokens` does not decide.

    Raises:
        ConfigurationError: both are given.
    """
    if accumulate is not None and update_tokens is not None:
        raise ConfigurationError(
            f"accumulate={accumulate} contradicts update_tokens={update_tokens!r}, which decides "
            "how many steps an update has; pass one of them"
        )
    return 1 if accumulate is None else accumulate


def least_tokens(policy: Policy) -> int:
    """Tokens that a group needs to keep an accelerator busy: measured by ``evenstep profile`` where
    the policy has such a cost."""
    language = language_part(policy.cost)
    if isinstance(language, FittedCost) and language.per_group > 0 < language.per_token:
        return max(1, int(_OVERHEAD * language.per_group / language.per_token))
    return LEAST_TOKENS


class _Held:
    """What groups of a policy hold, one on each rank."""

    def __init__(self, policy: Policy, ranks: int, lengths: Int64Array | None) -> None:
        known = lengths is not None and len(lengths) > 0
        self._ranks = ranks
        self._lengths = np.asarray(lengths, np.int64) if known else None
        self._times = self._lengths
        """[samples] what each takes of a group's tokens."""
        self._packed = policy.packed
        limit = policy.limit
        batch_size: int | None = getattr(policy, "batch_size", None)
        if isinstance(policy, Even):
            self.limit = policy.target_tokens or policy.limit.max_tokens
            if self._lengths is not None:
                times = counts(policy.cost, self._lengths, packed=policy.packed)
                self._times = np.minimum(times, policy.limit.max_tokens)
        elif limit is not None:
            self.limit = limit.max_tokens
            if policy.packed:
                self._lengths = None  # any lengths fill a group
        elif batch_size is not None and self._lengths is not None:
            mean = max(1, int(self._lengths.sum()) // len(self._lengths))
            self.limit, self._lengths = batch_size * mean, None
        else:
            raise ConfigurationError(
                f"{policy.name} does not say how many tokens a group has, so update_tokens cannot "
                "be kept; pass accumulate instead"
            )

    @property
    def most(self) -> int:
        """Mean real tokens of a full group."""
        return self.tokens(self.limit)

    def tokens(self, target: int) -> int:
        """Mean real tokens of a group that should hold `target`.

        A sample that is longer is a group by itself, which the other ranks match with samples that
        are not: so on W ranks there are W times as many such steps as a rank has long samples,
        until there is nothing left to match them with.
        """
        if self._lengths is None or self._times is None:
            return target
        all_tokens = int(self._lengths.sum())
        if self._packed:
            return max(1, target * all_tokens // int(self._times.sum()))
        fits = self._times <= target
        long, short = self._lengths[~fits], self._lengths[fits]
        long_tokens = int(long.sum())
        rest = all_tokens - self._ranks * long_tokens
        if rest <= 0:
            return max(1, long_tokens // max(len(long), 1))
        # Groups of one length, in units of 2 ** -32.
        groups = int((_ONE // (target // self._times[fits])).sum()) * rest // int(short.sum())
        return max(1, all_tokens * _ONE // (groups + self._ranks * len(long) * _ONE))

    def matches(self, target: int) -> bool:
        """Whether there are enough short samples to match those that are longer than `target`."""
        if self._lengths is None or self._times is None:
            return True
        long = int(self._lengths[self._times > target].sum())
        return self._ranks * long <= int(self._lengths.sum())

    def smallest(self, tokens: int) -> int:
        """The smallest target of groups that hold so many tokens; no more than the limit."""
        low, high = 1, self.limit
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.tokens(middle) < tokens else (low, middle)
        return low
