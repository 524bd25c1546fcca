"""`TokenBudget` on ranks that plan few of a window's groups in a round, so that samples wait."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.plan import Plan, Proposal, TokenBudget


@dataclass(frozen=True)
class FewSteps(TokenBudget):
    steps: int = field(kw_only=True)
    """The most steps of a round."""

    def settle(self, proposal: Proposal, messages: np.ndarray, rank: int) -> Plan:
        fewer = messages.copy()
        fewer[:, 0] = np.minimum(fewer[:, 0], self.steps)
        return super().settle(proposal, fewer, rank)
