from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import TransformerCost
from evenstep.plan.groups import Groups
from evenstep.plan.policies.sequence_packing import SequencePacking
from evenstep.plan.policy import Window
from plan_world import play

few = settings(max_examples=30)
CAPACITY = 100


def drawn(counts: list[int], longest: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, longest, count, endpoint=True) for count in counts]


# Numbers of samples and their spread decide what matters, so those are drawn.
LONGEST, ANY = st.sampled_from([1, 10, 60, CAPACITY]), st.integers(0, 2**32)
SOURCES = st.builds(drawn, st.lists(st.integers(0, 60), min_size=1, max_size=8), LONGEST, ANY).map(
    lambda sources: [source.tolist() for source in sources]
)


def window(lengths: list[int], **options: object) -> Window:
    ages = np.array(options.pop("ages", [0] * len(lengths)), np.int64)
    return Window(lengths=np.array(lengths, np.int64), ages=ages, **options)  # type: ignore[arg-type]


def settle(policy: SequencePacking, windows: list[Window]) -> list[Groups]:
    proposals = [policy.propose(w) for w in windows]
    messages = np.stack([p.message for p in proposals])
    return [policy.settle(p, messages, rank).groups for rank, p in enumerate(proposals)]


@few
@given(SOURCES, st.integers(1, 40), st.integers(0, 4))
def test_no_sample_waits_longer_than_promised(
    sources: list[list[int]], buffer_size: int, max_wait: int
) -> None:
    policy = SequencePacking(CAPACITY, max_wait=max_wait)
    for turns in play(policy, sources, buffer_size=buffer_size):
        for turn in turns.values():
            assert turn.window.ages.max() <= max_wait + buffer_size


def test_the_fullest_groups_go_and_the_least_full_waits() -> None:
    # Best fit makes 90 + 10, 60 + 35 and 50.
    windows = [window([60, 50, 90, 35, 10])] * 2
    for groups in settle(SequencePacking(CAPACITY), windows):
        assert {frozenset(groups.group(g).tolist()) for g in range(len(groups))} == {
            frozenset({2, 4}),
            frozenset({0, 3}),
        }


def test_overdue_samples_go_before_fuller_groups() -> None:
    lengths = [100, 99, 98, 40]
    young = settle(SequencePacking(CAPACITY, max_wait=2), [window(lengths, ages=[0, 0, 0, 1])])[0]
    overdue = settle(SequencePacking(CAPACITY, max_wait=2), [window(lengths, ages=[0, 0, 0, 2])])[0]
    assert 3 not in young.members
    assert 3 in overdue.members


def test_groups_of_like_cost_meet_in_a_step() -> None:
    cost = TransformerCost(layers=1, hidden_size=1, heads=1, ffn_size=1)
    policy = SequencePacking(CAPACITY, cost=cost)
    rng = np.random.default_rng(0)
    windows = [
        window(rng.integers(1, CAPACITY, 200).tolist(), seed=1, exhausted=True) for _ in range(4)
    ]
    planned = settle(policy, windows)
    costs = np.stack(
        [cost(g.shapes(w.lengths), packed=True) for g, w in zip(planned, windows)], axis=1
    )
    by_place = np.sort(costs, axis=0)
    assert costs.max(axis=1).sum() == pytest.approx(by_place.max(axis=1).sum())


def test_the_order_of_a_round_depends_on_seed_epoch_and_round_alone() -> None:
    lengths = np.random.default_rng(0).integers(1, CAPACITY, 200).tolist()

    def order(**key: int) -> list[int]:
        return settle(SequencePacking(CAPACITY), [window(lengths, **key)])[0].members.tolist()

    assert order(seed=1) == order(seed=1)
    orders = [order(), order(seed=1), order(epoch=1), order(round=1)]
    assert len(set(map(tuple, orders))) == 4
