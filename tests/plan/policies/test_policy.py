"""The contract of every policy, as plan/policy.py states it, over random worlds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import (
    FittedCost,
    GroupShapes,
    PaddedTokenCost,
    TokenCost,
    TransformerCost,
    VisionLanguageCost,
)
from evenstep.plan import Even, FixedBatch, Policy, PoolSort, SequencePacking, TokenBudget, Window
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.pipeline import PipelineSchedule
from few_steps import FewSteps
from plan_world import Turn, play

WAITS = st.integers(0, 5)
TOKEN_BUDGETS = st.builds(
    TokenBudget,
    st.integers(1, 600),
    max_patches=st.none() | st.integers(1, 30),
    max_wait=WAITS,
    spread=st.booleans(),
) | st.builds(FewSteps, st.integers(100, 600), steps=st.integers(1, 3), max_wait=WAITS)
LANGUAGE = TransformerCost(layers=2, hidden_size=8, heads=2, ffn_size=16)
VISION = TransformerCost.vision(layers=2, hidden_size=8, heads=2, ffn_size=32)
DEAR = FittedCost(per_group=0.0, per_token=1.0, per_pair=1 / 100)
"""Long samples take longer than any full group."""


def per_longest(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return shapes.longest.astype(np.float64)


def nothing(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return np.zeros(len(shapes.longest))


EVENS = st.builds(
    Even,
    st.integers(1, 600),
    max_patches=st.none() | st.integers(1, 30),
    max_images=st.none() | st.integers(1, 6),
    max_wait=WAITS,
    sync=st.sampled_from(["step", "update"]),
    cost=st.sampled_from(
        [
            PaddedTokenCost(),
            TokenCost(),
            LANGUAGE,
            DEAR,
            VisionLanguageCost(language=LANGUAGE, vision=VISION),
            VisionLanguageCost(language=DEAR, vision=DEAR),
            VisionLanguageCost(language=TokenCost(), vision=VISION, window=4),
            FittedCost(per_group=3.0, per_token=0.1, per_pair=0.0),
            FittedCost(per_group=0.3, per_token=0.0, per_pair=0.0),
            per_longest,
            nothing,
        ]
    ),
    packed=st.booleans(),
) | st.builds(
    lambda target, more, max_wait: Even(target + more, target_tokens=target, max_wait=max_wait),
    st.integers(1, 100),
    st.integers(0, 500),
    WAITS,
)
OF_DEAR = st.builds(
    Even,
    st.integers(100, 600),
    max_patches=st.sampled_from([None, None, 80]),
    max_wait=WAITS,
    sync=st.sampled_from(["update", "update", "step"]),
    cost=st.sampled_from([DEAR, DEAR, VisionLanguageCost(language=DEAR, vision=DEAR)]),
    packed=st.booleans(),
)
OTHERS = st.one_of(
    TOKEN_BUDGETS,
    st.builds(FixedBatch, st.integers(1, 8), drop_last=st.booleans()),
    st.builds(PoolSort, st.integers(1, 8), pool_size=st.none() | st.integers(10, 40)),
    st.builds(SequencePacking, st.integers(1, 600), max_wait=WAITS),
    st.builds(
        WorkloadPacking,
        st.integers(1, 300),
        micro_batches=st.integers(1, 4),
        max_tokens=st.integers(330, 600),
        max_delay=st.none() | WAITS,
        schedule=st.none() | st.just(PipelineSchedule(stages=2)),
    ),
)


@dataclass(frozen=True)
class World:
    sources: list[list[int]]
    options: dict[str, Any]

    def rounds(self, policy: Policy) -> list[dict[int, Turn]]:
        sources = self.sources
        if isinstance(policy, (SequencePacking, WorkloadPacking)):
            # It cannot place a sample longer than the budget, and is never given one.
            sources = [[min(n, policy.max_tokens) for n in source] for source in sources]
        return list(play(policy, sources, **self.options))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    # The counts decide what matters, so they are drawn one by one; lengths come from one seed.
    counts = draw(st.lists(st.integers(0, 50), min_size=1, max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 0.5, 1.5]))
    lengths = [np.exp(rng.normal(3, spread, n)).astype(int).clip(1, 2000).tolist() for n in counts]
    options = {
        "patches": [rng.integers(0, 20, n).tolist() for n in counts],
        "buffer_size": draw(st.integers(1, 40)),
        "late_end": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "epoch": draw(st.integers(0, 1000)),
        "accumulate": draw(st.integers(1, 7)),
    }
    return World(lengths, options)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "policies", [EVENS, OF_DEAR, OTHERS], ids=["even", "even of dear samples", "others"]
)
@given(st.data(), worlds())
def test_every_plan_keeps_the_contract(
    policies: st.SearchStrategy[Policy], data: st.DataObject, world: World
) -> None:
    policy = data.draw(policies)
    messages = set()
    trained: list[list[int]] = [[] for _ in world.sources]
    dropped: list[list[int]] = [[] for _ in world.sources]
    for number, turns in enumerate(world.rounds(policy)):
        # Every rank that proposed a sample gets equally many groups, and some rank a sample.
        # Who waits for updates makes its groups once all messages are known.
        late = policy.sync == "update"
        proposed = [turn for turn in turns.values() if late or len(turn.proposal.groups)]
        assert len({turn.steps for turn in proposed}) <= 1
        assert sum(turn.steps for turn in turns.values()) == sum(turn.steps for turn in proposed)
        assert not proposed or any(len(turn.plan.groups.members) for turn in turns.values())
        for rank, turn in turns.items():
            named = np.concatenate([turn.plan.groups.members, turn.plan.dropped])
            assert len(np.unique(named)) == len(named)
            assert np.isin(named, np.arange(len(turn.window))).all()
            assert (turn.plan.groups.sizes > 0).all()
            check_memory(policy, turn)
            if (wait := getattr(policy, "max_wait", None)) is not None:
                assert turn.window.ages.max() <= wait + world.options["buffer_size"]
            if number < 3:
                check_again(policy, turn, rank)
            messages.add((turn.proposal.message.shape, turn.proposal.message.dtype))
            trained[rank] += [sample for group in turn.emitted for sample in group]
            dropped[rank] += turn.dropped
    assert len(messages) <= 1
    assert all(dtype == np.int64 for _, dtype in messages)
    for own, lost, source in zip(trained, dropped, world.sources):
        assert sorted(own + lost) == list(range(len(source)))
        assert getattr(policy, "drop_last", False) or not lost


def check_memory(policy: Policy, turn: Turn) -> None:
    """No group is over the policy's limits, except a single sample."""
    shapes = turn.plan.groups.shapes(turn.window.lengths)
    if isinstance(policy, (FixedBatch, PoolSort)):
        assert (shapes.samples <= policy.batch_size).all()
        return
    if isinstance(policy, (SequencePacking, WorkloadPacking)):
        assert (shapes.tokens <= policy.max_tokens).all()
        return
    assert isinstance(policy, (TokenBudget, Even))
    several = shapes.samples > 1
    tokens = shapes.tokens if policy.packed else shapes.padded
    assert (tokens[several] <= policy.max_tokens).all()
    members, begins = turn.plan.groups.members, turn.plan.groups.offsets[:-1]
    for name in ("patches", "images") if turn.steps else ():
        limit = getattr(policy, f"max_{name}", None)
        if limit is not None:
            held = np.add.reduceat(getattr(turn.window, name)[members], begins)
            assert (held[several] <= limit).all()


def check_again(policy: Policy, turn: Turn, rank: int) -> None:
    """Equal arguments give an equal plan, and stay as they are."""
    given_ = [*vars(turn.window).values(), turn.messages]
    arrays = [each for each in given_ if isinstance(each, np.ndarray)]
    before = [array.copy() for array in arrays]
    plan = policy.settle(policy.propose(turn.window), turn.messages, rank)
    for name in ("members", "offsets"):
        assert np.array_equal(getattr(plan.groups, name), getattr(turn.plan.groups, name))
    assert all((a == b).all() for a, b in zip(arrays, before))


ORDERED = [
    TokenBudget(12_288),
    TokenBudget(12_288, spread=False),
    Even(12_288, cost=PaddedTokenCost()),
    Even(12_288, packed=True, cost=LANGUAGE),
    PoolSort(4),
    SequencePacking(12_288),
]


@pytest.mark.parametrize("policy", ORDERED, ids=lambda policy: type(policy).__name__)
def test_the_order_of_steps_is_drawn_and_tells_nothing_of_length(policy: Policy) -> None:
    lengths = np.exp(np.random.default_rng(5).normal(6, 1, 4096)).astype(int).clip(1, 12_288)

    def order(**key: int) -> tuple[int, ...]:
        window = Window(lengths=lengths[:512], ages=np.zeros(512, np.int64), **key)
        proposal = policy.propose(window)
        return tuple(policy.settle(proposal, proposal.message[None], 0).groups.members)

    assert len({order(), order(seed=1), order(epoch=1), order(round=1)}) == 4
    played = play(policy, [lengths.tolist()], buffer_size=512)
    emitted = [group for turns in played for group in turns[0].emitted]
    means = [float(np.log(lengths[group]).mean()) for group in emitted]
    ranks = np.argsort(np.argsort(means))
    correlation = np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]
    assert abs(correlation) < 3 / np.sqrt(len(ranks))


@given(EVENS | OTHERS, EVENS | OTHERS)
def test_options_differ_where_policies_differ(one: Policy, other: Policy) -> None:
    same = type(one) is type(other) and one.options() == other.options()
    assert same == (one == other)
    names = {field.name for field in dataclasses.fields(one)}  # type: ignore[arg-type]
    assert names - set(one.options()) <= {"max_images", "sync"}  # which older states lack
