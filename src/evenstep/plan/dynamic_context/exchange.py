"""What it costs that ranks share a row: keys and values travel, partly while attention computes.

Each rank of a group receives the keys and values of the others' tokens and sends their gradients
back. That takes time in proportion to the tokens of the row, however many ranks share it, whereas
each rank's attention shrinks with their number. What attention takes hides as much of the exchange;
the rest is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least

Number = TypeVar("Number", int, Int64Array)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Cost of exchange, in the units of `DocumentCost` for each token that a rank receives.

    The defaults are for `DocumentCost`'s own default, a model of 7B parameters, with 8 of 32 heads
    for keys and values, on H100 GPUs: 8 KB a token and layer, forward and back, at 360 GB/s within
    a node and 40 GB/s between nodes.
    """

    within: int = 300
    """Between ranks of one node."""
    between: int = 2500
    """Where the ranks are more than a node has."""
    node: int = 8
    """Ranks of a node."""

    def __post_init__(self) -> None:
        check_at_least(0, within=self.within, between=self.between)
        check_at_least(1, node=self.node)

    def of(self, ranks: Number, tokens: Number) -> Number:
        """What each of `ranks` ranks receives of a row of `tokens`, hidden or not."""
        far = ranks > self.node
        rate = self.within + (self.between - self.within) * far
        return rate * tokens * (ranks - 1) // ranks
