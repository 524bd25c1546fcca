"""The contract of every policy, as plan/policy.py states it, over random worlds."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import (
    Cost,
    FittedCost,
    GroupShapes,
    PaddedTokenCost,
    TokenCost,
    TransformerCost,
    VisionLanguageCost,
)
from evenstep.errors import SampleError
from evenstep.plan import Even, FixedBatch, Policy, TokenBudget
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.policies.sequence_packing import SequencePacking
from evenstep.plan.policy import too_long
from plan_world import Turn, play

TOKEN_BUDGETS = st.builds(
    TokenBudget,
    st.integers(1, 600),
    max_patches=st.none() | st.integers(1, 30),
    max_wait=st.integers(0, 5),
    spread=st.booleans(),
)
FIXED_BATCHES = st.builds(FixedBatch, st.integers(1, 8), drop_last=st.booleans())
LANGUAGE = TransformerCost(layers=2, hidden_size=8, heads=2, ffn_size=16)
VISION = TransformerCost.vision(layers=2, hidden_size=8, heads=2, ffn_size=32)
EVENS = st.builds(
    Even,
    st.integers(1, 600),
    max_patches=st.none() | st.integers(1, 30),
    max_images=st.none() | st.integers(1, 6),
    max_wait=st.integers(0, 5),
    cost=st.sampled_from(
        [
            PaddedTokenCost(),
            TokenCost(),
            LANGUAGE,
            VisionLanguageCost(language=LANGUAGE, vision=VISION),
            VisionLanguageCost(language=TokenCost(), vision=VISION, window=4),
            FittedCost(per_group=3.0, per_token=0.1, per_pair=0.0),
        ]
    ),
    packed=st.booleans(),
) | st.builds(
    lambda target, more, max_wait: Even(target + more, target_tokens=target, max_wait=max_wait),
    st.integers(1, 100),
    st.integers(0, 500),
    st.integers(0, 5),
)
POOL_SORTS = st.builds(
    PoolSort,
    st.integers(1, 8),
    pool_size=st.none() | st.integers(10, 40),
)
SEQUENCE_PACKINGS = st.builds(SequencePacking, st.integers(1, 600), max_wait=st.integers(0, 5))
WORKLOAD_PACKINGS = st.builds(
    WorkloadPacking,
    st.integers(1, 300),
    micro_batches=st.integers(1, 4),
    max_tokens=st.integers(330, 600),
    max_delay=st.none() | st.integers(0, 5),
    schedule=st.none() | st.just(PipelineSchedule(stages=2)),
)
POLICIES = st.one_of(
    TOKEN_BUDGETS, FIXED_BATCHES, EVENS, POOL_SORTS, SEQUENCE_PACKINGS, WORKLOAD_PACKINGS
)


@dataclass(frozen=True)
class World:
    sources: list[list[int]]
    patches: list[list[int]]
    buffer_size: int
    late_end: bool
    seed: int
    epoch: int

    def rounds(self, policy: Policy) -> list[dict[int, Turn]]:
        sources = self.sources
        if isinstance(policy, (SequencePacking, WorkloadPacking)):
            # It cannot place a sample longer than the budget, and is never given one.
            sources = [[min(n, policy.max_tokens) for n in source] for source in sources]
        return list(
            play(
                policy,
                sources,
                buffer_size=self.buffer_size,
                patches=self.patches,
                late_end=self.late_end,
                seed=self.seed,
                epoch=self.epoch,
            )
        )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    # The counts decide what matters, so they are drawn one by one; lengths come from one seed.
    counts = draw(st.lists(st.integers(0, 60), min_size=1, max_size=16))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 0.5, 1.5]))
    return World(
        sources=[
            np.exp(rng.normal(3, spread, n)).astype(int).clip(1, 2000).tolist() for n in counts
        ],
        patches=[rng.integers(0, 20, n).tolist() for n in counts],
        buffer_size=draw(st.integers(1, 40)),
        late_end=draw(st.booleans()),
        seed=draw(st.integers(0, 2**64 - 1)),
        epoch=draw(st.integers(0, 1000)),
    )


@given(POLICIES, worlds())
def test_every_plan_keeps_the_contract(policy: Policy, world: World) -> None:
    messages = set()
    trained: list[list[int]] = [[] for _ in world.sources]
    dropped: list[list[int]] = [[] for _ in world.sources]
    for turns in world.rounds(policy):
        # Every rank that proposed a sample gets equally many groups, and some rank a sample.
        proposed = [turn for turn in turns.values() if len(turn.proposal.groups)]
        assert len({turn.steps for turn in proposed}) <= 1
        assert sum(turn.steps for turn in turns.values()) == sum(turn.steps for turn in proposed)
        assert not proposed or any(len(turn.plan.groups.members) for turn in turns.values())
        for rank, turn in turns.items():
            named = np.concatenate([turn.plan.groups.members, turn.plan.dropped])
            assert len(np.unique(named)) == len(named)
            assert np.isin(named, np.arange(len(turn.window))).all()
            assert (turn.plan.groups.sizes > 0).all()
            check_memory(policy, turn)
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


@given(POLICIES, worlds())
@settings(max_examples=12)
def test_equal_arguments_give_equal_plans_and_stay_as_they_are(
    policy: Policy, world: World
) -> None:
    rounds, again = world.rounds(policy), world.rounds(policy)
    assert [[t.emitted for t in turns.values()] for turns in rounds] == [
        [t.emitted for t in turns.values()] for turns in again
    ]
    for turns in rounds:
        for rank, turn in turns.items():
            columns = [turn.window.lengths, turn.window.ages, turn.window.patches]
            messages = np.repeat(turn.proposal.message[None], rank + 1, axis=0)
            arrays = [a for a in columns if a is not None] + [messages]
            before = [array.copy() for array in arrays]
            policy.settle(policy.propose(turn.window), messages, rank)
            assert all((a == b).all() for a, b in zip(arrays, before))


IN_ANOTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from plan_world import play
from few_steps import FewSteps
policy = FewSteps(300, steps=3)
sources = [[1 + (37 * i * (r + 1)) % 290 for i in range(40)] for r in range(3)]
rounds = play(policy, sources, buffer_size=16, seed=5, epoch=2)
print(json.dumps([[turn.emitted for turn in turns.values()] for turns in rounds]))
"""


def test_a_fresh_interpreter_makes_the_same_plan() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, *flags, "-c", IN_ANOTHER_PROCESS, str(Path(__file__).parents[2])],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for flags in ([], ["-R"])  # -R: other hash seeds, so no order may come from a set
    ]
    assert outputs[0] == outputs[1]
    assert sum(len(group) for turns in json.loads(outputs[0]) for t in turns for group in t) == 120


# What a policy says about itself


def double(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return 2.0 * shapes.tokens


class Doubled:
    def __call__(self, shapes: GroupShapes, *, packed: bool) -> np.ndarray:
        return 2.0 * shapes.tokens


@pytest.mark.parametrize("cost", [double, Doubled(), PaddedTokenCost()])
def test_options_are_equal_wherever_the_policy_was_built(cost: Cost) -> None:
    # The default repr of functions and objects holds an address, which differs between ranks.
    options = TokenBudget(100, cost=cost).options()
    assert "0x" not in options["cost"]
    assert json.loads(json.dumps(options)) == options


@given(POLICIES, POLICIES)
def test_options_differ_where_policies_differ(one: Policy, other: Policy) -> None:
    same = type(one) is type(other) and one.options() == other.options()
    assert same == (one == other)


def test_a_sample_over_the_limit_is_refused_with_its_name_length_and_limit() -> None:
    error = too_long("sample 17 of rank 3", 20_000, 16_384)
    assert isinstance(error, SampleError)
    assert "sample 17 of rank 3 has 20,000 tokens, over max_tokens=16,384" in str(error)
    assert "truncate it in the dataset or raise max_tokens" in str(error)
