"""How many tokens a group may have, where that is found while training: ``max_tokens="auto"``.

Groups begin small. Each rank watches the memory that they take and tells how many tokens would fit;
all go on with the least of these, from the same round on. While that is still being found, a round
is one update, which is planned once the trainer has taken the last: so what was measured of one
update counts two later. Then a rank only tells where less fits than was thought.

A sample that is longer than what fits is a group by itself, as there is no smaller one that has it.

Where the tokens of an update are fixed, it has fewer groups once larger ones fit: see `Updates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.arrays import Int64Array

START = 2048
"""Tokens of the first groups."""


@dataclass(frozen=True)
class Updates:
    """Which steps of an epoch are an update: from one on, every `accumulate` of them. For example,
    ``Updates(first=8, before=2, accumulate=3)``: after two updates in the first eight steps, the
    third is of steps 8 to 10."""

    accumulate: int = 1
    first: int = 0
    """Step that this holds from."""
    before: int = 0
    """Updates before that step."""

    def number(self, step: int) -> int:
        """Number of the update that a step belongs to."""
        return self.before + (step - self.first) // self.accumulate

    def micro_step(self, step: int) -> int:
        """Steps of its update before it."""
        return (step - self.first) % self.accumulate

    def of(self, accumulate: int, step: int) -> Updates:
        """Updates of so many steps, from a step on that begins one."""
        if accumulate == self.accumulate or self.micro_step(step):
            return self
        return Updates(accumulate, step, self.number(step))


ONE_STEP = Updates()
"""Every step is an update."""


@dataclass(frozen=True)
class Fit:
    """What is known to fit, the same on all ranks."""

    tokens: int = START
    longest: int = 0
    """Tokens of the longest sample that was in a window."""
    grows: bool = True
    """Whether more may fit."""

    @property
    def most(self) -> int:
        """`max_tokens` of the groups that are formed."""
        return max(self.tokens, self.longest)

    def after(self, told: Int64Array, longest: int) -> Fit:
        """What is known after a round.

        Args:
            told: [ranks] tokens that each says fit, of those that have samples; 0 where it does not
                say. All have to say before groups grow; that fewer fit, one alone may say.
            longest: tokens of the longest sample in their windows.
        """
        longest = max(self.longest, longest)
        said = told[told > 0]
        if len(said):
            least = int(said.min())
            if least < self.most or (self.grows and len(said) == len(told)):
                return Fit(least, longest, grows=least > self.most)
        return Fit(self.tokens, longest, self.grows)
