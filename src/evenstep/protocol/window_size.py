"""How many samples a rank's window holds: a given number, or as many as make enough groups.

Under ``buffer_size="auto"`` a window grows to `Policy.window_tokens`. All ranks compute the same
size, from the samples and tokens that their windows held in the round before. It starts small, so
that the first step comes soon, at most doubles from round to round, and does not follow the mean
length down again. The rank with least memory for samples limits it, as told in the first round.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.policy import Policy
from evenstep.protocol.bodies import ProposalHead
from evenstep.protocol.window_buffer import RoundStart

AUTO = "auto"
FIXED_SIZE = 1024
"""Samples of a window under "auto", where the policy does not ask for a number of tokens."""
FIRST_SIZE = 256
"""Samples of the first window where it does."""


def check_buffer_size(buffer_size: int | str) -> None:
    """Raises `ConfigurationError` for a buffer size that is neither "auto" nor at least 1."""
    if isinstance(buffer_size, str) and buffer_size != AUTO:
        raise ConfigurationError(
            f'buffer_size={buffer_size!r} must be "{AUTO}" or a number of samples'
        )
    check_at_least(1, buffer_size=None if isinstance(buffer_size, str) else buffer_size)


def same_windows(policy: Policy, one: int | str, other: int | str) -> bool:
    """Whether windows are of the same size under two values of ``buffer_size``."""
    sizes = [WindowSize(policy, size, None) for size in (one, other)]
    return sizes[0].grows == sizes[1].grows and sizes[0].most == sizes[1].most


class WindowSize:
    """The size in each round, the same on all ranks."""

    def __init__(self, policy: Policy, buffer_size: int | str, start: RoundStart | None) -> None:
        """
        Args:
            start: the round to resume from.
        """
        self._policy = policy
        self._tokens = policy.window_tokens if buffer_size == AUTO else None
        self.grows = self._tokens is not None
        """Whether the size follows from tokens."""
        first = FIRST_SIZE if self.grows else FIXED_SIZE
        self.current = first if isinstance(buffer_size, str) else buffer_size
        self._first = self.current
        self.limit: int | None = None
        """Samples that all ranks have memory for; None if that is unknown."""
        if self.grows and start is not None and start.window_size is not None:
            self.current, self.limit = start.window_size, start.window_limit

    @property
    def most(self) -> int:
        """Samples that a window may hold now, in any round."""
        return self._policy.window_size(self.current)

    @property
    def largest(self) -> int:
        """Samples that a window may hold now, counting those that stay in it from the first, which
        is the only one that may have been larger: what memory allows is not known before it."""
        return max(self.most, self._policy.window_size(self._first))

    def at(self, round: int) -> int:
        """Samples that a window should hold in a round, counted from 0."""
        return self._policy.window_size_at(self.current, round)

    def learn(self, heads: Sequence[ProposalHead]) -> None:
        """Takes what the windows of a round hold on all ranks; counts for the next round."""
        samples, tokens = sum(h.samples for h in heads), sum(h.tokens for h in heads)
        if self._tokens is None or not tokens:
            return
        wanted = -(-self._tokens * samples // tokens)
        if self.limit is None:
            self.limit = min((head.room for head in heads if head.room), default=None)
        grown = max(self.current, min(wanted, 2 * self.current))
        self.current = min(grown, self.limit or grown)
