"""`Even` over documents some of which take longer than any full group: they meet their like, or
where ranks wait at the end of an update, smaller groups of their own rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evenstep.cost import FittedCost, VisionLanguageCost
from evenstep.plan import Even
from evenstep.tools.simulate import SimulationResult, deal, simulate
from evenstep.tools.simulate.run import run_epoch

CONTEXT = 32_768
COST = FittedCost(per_group=1000.0, per_token=1.0, per_pair=1 / 17_000)


def documents(count: int, seed: int = 0) -> np.ndarray:
    """Lengths like those of files of code. Those that take longer than a full group are one in 60,
    and a third of the time."""
    drawn = np.exp(np.random.default_rng(seed).normal(6.8, 1.5, count))
    return np.minimum(drawn, CONTEXT).astype(np.int64).clip(16)


def run(
    sync: str, *, accumulate: int, ranks: int = 8, packed: bool = True, each: int = 3000
) -> SimulationResult:
    lengths = documents(ranks * each)
    policy = Even(CONTEXT, packed=packed, cost=COST, sync=sync)
    shards = [lengths[shard] for shard in deal(len(lengths), ranks)]
    return simulate(policy, shards, accumulate=accumulate)


def imbalance_but_for_the_end(costs: np.ndarray, packed: bool = True) -> float:
    """Ranks whose shares are fixed have unlike work left in the end, whatever is planned: a fifth
    of these epochs, and three tenths where groups are padded, as windows then hold more."""
    most = costs[: int(len(costs) * (0.8 if packed else 0.7))]
    return float(most.max(axis=1).sum() / most.mean(axis=1).sum())


@pytest.mark.parametrize(("ranks", "accumulate", "packed"), [(8, 4, True), (2, 2, False)])
def test_updates_take_as_long_on_every_rank_where_ranks_wait_at_their_end(
    ranks: int, accumulate: int, packed: bool
) -> None:
    found = run("update", accumulate=accumulate, ranks=ranks, packed=packed)
    assert found.missing == found.duplicates == found.undelivered == 0
    # Two padded groups fill few of the last updates that have no long document on this rank.
    assert found.imbalance < (1.05 if accumulate == 2 and not packed else 1.04)
    updates = np.add.reduceat(found.costs, np.arange(0, found.steps, accumulate))
    assert (
        imbalance_but_for_the_end(updates, packed) < 1.017
    )  # with the small windows of the beginning
    # The steps of an update are not even, which is what makes room for long documents.
    assert imbalance_but_for_the_end(found.costs) > 1.05
    if accumulate == 4:  # of two steps, the longest documents still fill most of one update
        assert found.composition > 0.93


def test_steps_with_long_documents_are_spread_over_updates() -> None:
    one, four = (run("step", accumulate=k, ranks=4) for k in (1, 4))
    assert imbalance_but_for_the_end(one.costs) < 1.07
    assert imbalance_but_for_the_end(four.costs) < 1.06
    assert one.composition < 0.5
    assert four.composition > 0.9


def steps_of(policy: Even, shards: list[np.ndarray], accumulate: int) -> list[list[list[int]]]:
    """For each rank, the samples of each step."""
    ranks = run_epoch(policy, shards, accumulate=accumulate).ranks
    return [[np.concatenate(step.micro_batches).tolist() for step in rank.steps] for rank in ranks]


@pytest.mark.parametrize(
    ("ranks", "accumulate", "options"),
    [
        (4, 1, {"cost": COST, "packed": True}),
        (4, 1, {"cost": COST}),
        (1, 4, {"cost": COST}),
        # Padded groups of such costs cannot be shared out.
        (2, 2, {"max_patches": 9, "cost": FittedCost(per_group=1.0, per_token=0.0, per_pair=0.0)}),
        (2, 2, {"max_patches": 9, "cost": VisionLanguageCost(language=COST, vision=COST)}),
    ],
    ids=["one step, packed", "one step", "one rank", "per group", "two parts"],
)
def test_updates_that_cannot_be_shared_out_are_those_of_steps(
    ranks: int, accumulate: int, options: dict[str, Any]
) -> None:
    shards = np.split(documents(800), ranks)
    one, other = (
        steps_of(Even(CONTEXT, sync=sync, **options), shards, accumulate)
        for sync in ("step", "update")
    )
    assert one == other
