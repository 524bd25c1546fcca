"""The last runs of an epoch: a target of no cost is no error, whatever a token costs."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.plan.policies.even.last_runs import fill_last
from evenstep.plan.policies.even.padded_end import LastSamples


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("token", [1.0, 1e12])
def test_a_target_of_nothing_overflows_nothing(token: float) -> None:
    lengths = np.arange(40, 0, -2)
    last = LastSamples(
        positions=np.arange(20),
        times=lengths,
        costs=np.array([lengths, lengths]) * token,
        room=np.full(20, 6),
    )
    targets = np.array([6 * 40 * token, 0.0, 6 * 40 * token, 0.0])
    parts = np.array([0, 0, 1, 1])
    groups = fill_last(last, targets, np.full(4, 0.5), pull=1.0, parts=parts)
    assert sorted(groups.members) == list(range(20))
