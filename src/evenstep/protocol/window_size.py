"""How many samples a rank's window holds: a given number, or as many as make enough groups; and no
more than there is memory for.

Under ``buffer_size="auto"`` a window grows to `Policy.window_tokens`. All ranks compute the same
size, from the samples and tokens that their windows held in the round before. It starts small, so
that the first step comes soon; grows as samples are trained on, so that ranks do not wait for large
windows; and does not follow the mean length down again.

In each round every rank says how many samples like those of its window it has memory for. The
least of these limits the next windows of all ranks. If it limits the first, that window is formed
again, so no rank has to hold it.
"""

from __future__ import annotations

from evenstep.errors import ConfigurationError
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import AUTO, check_at_least
from evenstep.protocol.bodies import ProposalHeads
from evenstep.protocol.window_buffer import RoundStart

FIXED_SIZE = 1024
"""Samples of a window under "auto", where the policy does not ask for a number of tokens."""
FIRST_SIZE, LARGE = 32, 256
"""Samples of the first window where it does; and those from which on it is no small one."""
_AHEAD = 3
"""Samples by which a window grows for each that a round's steps took, or for each that it holds
where there were none. Steps of small windows are less even: with 3, those of the first thirty have
up to 2 % more padding, and four samples are prepared for each that is trained on, where a fourfold
window takes twelve."""
_MUCH = 4
"""Windows that grow by more than one in so many have much fuller groups."""


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
        self.grows = buffer_size == AUTO and policy.window_tokens is not None
        """Whether the size follows from tokens."""
        first = FIRST_SIZE if self.grows else FIXED_SIZE
        self._first = first if isinstance(buffer_size, str) else buffer_size
        self.current = self._first
        self.limit: int | None = None
        """Samples that all ranks have memory for; None if that is unknown."""
        if start is not None and start.window_size is not None:
            self.current, self.limit = start.window_size, start.window_limit
        if self._tokens is None:
            self.current = min(self.current, self._first)
        self.fresh = start is None or start.quota is None
        """Whether no window was formed yet."""

    @property
    def _tokens(self) -> int | None:
        """That a window should hold; None where the size does not follow from tokens."""
        return self._policy.window_tokens if self.grows else None

    def suit(self, policy: Policy) -> None:
        """Follows the policy, whose groups have become larger or smaller."""
        self._policy = policy

    @property
    def most(self) -> int:
        """Samples that a window may hold now, in any round."""
        return self._policy.window_size(self.current)

    def within(self, room: int) -> int:
        """`most`, with memory for `room` samples; 0 if unknown."""
        return self._policy.window_size(min(self.current, room or self.current))

    def too_large(self, room: int) -> bool:
        """Whether a window must be formed again, by what a rank has memory for: only the first one,
        as the size of the others is agreed before they are filled.

        Args:
            room: samples; 0 if unknown.
        """
        return self.fresh and self.within(room) < self.most

    def learn(self, heads: ProposalHeads) -> bool:
        """Takes what ranks have memory for.

        Returns:
            Whether the windows of this round were too large for some rank.
        """
        known = heads.room[heads.room > 0]
        room = int(known.min()) if len(known) else 0
        again, self.fresh = self.too_large(room), False
        self.limit = room or self.limit
        self.current = self._limited(self.current if self.grows else self._first)
        return again

    def grow(self, heads: ProposalHeads, taken: int) -> bool:
        """Ends a round; what its windows held on all ranks counts for the next one.

        Args:
            taken: samples of its steps, on all ranks.

        Returns:
            Whether the next windows are much larger.
        """
        size, samples, tokens = self.current, int(heads.samples.sum()), int(heads.tokens.sum())
        if self._tokens is not None and tokens:
            wanted = -(-self._tokens * samples // tokens)
            more = _AHEAD * -(-taken // len(heads.samples)) or _AHEAD * size
            self.current = self._limited(max(size, min(wanted, size + more)))
        return self.current > size + size // _MUCH

    def _limited(self, size: int) -> int:
        return min(size, self.limit or size)
