"""The planner of docs/packing.md runs, and shares out equal cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.tools.simulate import sample_lengths
from page_code import run_page


def test_a_planner_of_ones_own_gives_every_rank_equal_cost() -> None:
    lengths = sample_lengths("pretrain-128k", 1500, 0)
    shown: list[tuple[Any, ...]] = []
    names: dict[str, Any] = {
        "lengths": lengths,
        "ages": np.zeros_like(lengths),
        "print": lambda *values: shown.append(values),
    }
    run_page("packing.md", "Planning it yourself", **names)
    assert len(shown) == 8
    members = [groups for groups, *_ in shown]
    assert {len(groups) for groups in members} == {4}
    planned = np.concatenate([group for groups in members for group in groups])
    assert len(np.unique(planned)) == len(planned)
    cost = [sum((d * d + 24_576 * d).sum() for d in map(lengths.take, g)) for g in members]
    assert max(cost) < 1.02 * np.mean(cost)
    for _, makespan, bubble, ratio in shown:
        assert makespan > 0
        assert 0 < bubble < 0.6
        assert 0.9 < ratio < 1.1
