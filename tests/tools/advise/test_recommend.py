"""Lengths are summed up, settings follow from them, and the advice says what speaks against it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from evenstep.cost import Cost, FittedCost, PaddedTokenCost, TransformerCost
from evenstep.plan import Even, FixedBatch, Policy, PoolSort, TokenBudget
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions
from evenstep.plan.update_size import UpdateSize
from evenstep.tools.advise import Advice, LengthSample, Prediction, advise
from evenstep.tools.advise.predict import FIGURES, Build, predict
from evenstep.tools.advise.recommend import code_for, set_up
from evenstep.tools.simulate import deal, sample_lengths, simulate


def sample_of(
    lengths: object, total: int | None = None, longest: int | None = None
) -> LengthSample:
    return LengthSample(name="d", lengths=np.asarray(lengths), total=total, longest=longest, how="")


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    st.integers(0, 5000),
    st.integers(1, 64),
    st.one_of(st.none(), st.integers(30, 10**6)),
)
def test_settings_fit_every_sample_known_of(
    lengths: list[int], beyond: int, world_size: int, total: int | None
) -> None:
    longest = max(lengths) + beyond
    setup = set_up(sample_of(lengths, total, longest), world_size=world_size)
    mean = sum(lengths) / len(lengths)
    assert setup.max_tokens >= longest
    assert setup.max_tokens >= 4 * mean
    assert setup.max_tokens - 256 < max(longest, 4 * mean)
    assert setup.batch_size >= 1
    assert setup.batch_size * longest <= setup.max_tokens
    assert setup.buffer_size == "auto"
    if setup.target_tokens is not None:
        assert 4 * mean <= setup.target_tokens <= setup.max_tokens / 2
    assert setup.sweep[0] == setup.max_tokens
    assert all(b == 2 * a for a, b in zip(setup.sweep, setup.sweep[1:]))
    assert len(setup.sweep) >= 2


@pytest.mark.parametrize(
    "policy",
    [
        Even(max_tokens=4096),
        Even(
            max_tokens=4096,
            max_wait=3,
            cost=TransformerCost(layers=2, hidden_size=8, heads=2, ffn_size=16, causal=False),
        ),
        TokenBudget(max_tokens=100, spread=False),
        FixedBatch(batch_size=4, drop_last=True),
    ],
)
def test_the_code_builds_a_loader_with_that_policy(policy: Policy) -> None:
    code = code_for(policy, 512, 5_000)
    line = "    memory=evenstep.Memory(buffer_size=512),\n"
    assert line in code
    assert code_for(policy, "auto", 5_000) == code.replace(line, "")
    dataset = [{"input_ids": [1] * n} for n in range(1, 30)]
    names = {"dataset": dataset, "evenstep": evenstep}
    exec(code.replace("num_workers=4", "num_workers=0"), names)
    loader = names["loader"]
    assert isinstance(loader, evenstep.DataLoader)
    assert loader.policy == policy  # type: ignore[attr-defined]
    assert loader.update_tokens == 5_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, 2 * 250),  # a full group of each rank: 2 samples of 128, or the one of 250
        ({"batch_size": 8}, 2 * 8 * 130),
        ({"batch_size": 8, "update_tokens": 9_000}, 9_000),
    ],
)
def test_updates_hold_what_the_users_do(given: dict[str, int], expected: int) -> None:
    lengths = np.full(60, 128)
    lengths[0] = 250
    setup = set_up(sample_of(lengths), world_size=2, max_tokens=256, **given)
    assert setup.update_tokens == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("buffer_size", "total", "held"),
    [(512, 10**6, 512), (4096, 2 * 1000, 1000), ("auto", 2 * 1000, 1000), (512, None, 512)],
)
def test_groups_aim_lower_where_max_tokens_is_few_of_them_in_what_a_rank_holds(
    buffer_size: int | str, total: int | None, held: int
) -> None:
    lengths = np.full(1000, 100)
    lengths[7] = 100_000
    data = sample_of(lengths, total)
    setup = set_up(data, world_size=2, buffer_size=buffer_size)
    assert setup.max_tokens == 100_096
    assert setup.target_tokens is not None
    wanted = held * lengths.mean() / 64
    assert wanted <= setup.target_tokens < wanted + 256
    # Windows that grow hold enough groups of a shorter one.
    lengths[7] = 20_000
    for many in (None, 10**6):
        assert set_up(sample_of(lengths, many), world_size=2).target_tokens is None


# Words of caution


WARNING = "mix lengths less than random batches do"


def advice_of(recommended: Build) -> Advice:
    lengths = sample_lengths("ultrachat", 800, 1)
    sample = sample_of(lengths, len(lengths), int(lengths.max()))
    return advise(
        sample,
        {"even": recommended, "fixed-batch": lambda s: FixedBatch(s.batch_size)},
        setup=set_up(sample, world_size=4, batch_size=4, buffer_size=64),
        cost=PaddedTokenCost(),
    )


@pytest.mark.parametrize(
    ("long", "cost", "packed", "said"),
    [
        # A sample of 100 tokens takes 110, and one of 2,000 takes 6,000.
        (20, FittedCost(per_group=0.0, per_token=1.0, per_pair=0.001), False, "36% of the time"),
        (20, PaddedTokenCost(), False, None),
        (0, FittedCost(per_group=0.0, per_token=1.0, per_pair=0.001), False, None),
    ],
)
def test_samples_that_take_longer_than_a_full_group_are_told(
    long: int, cost: Cost, packed: bool, said: str | None
) -> None:
    lengths = np.array([100] * (2000 - long) + [2000] * long)
    np.random.default_rng(0).shuffle(lengths)
    sample = sample_of(lengths, 2000, 2000)
    used = {name: POLICIES[name] for name in ("even", "even-packed", "fixed-batch")}
    setup = set_up(sample, world_size=2, max_tokens=2000, update_tokens=32_000)
    found = advise(sample, used, setup=setup, cost=cost, packed=packed)
    notes = [note for note in found.notes if "take longer than a full group" in note]
    assert bool(notes) == (said is not None)
    for note in notes:
        assert note.startswith("20 of the 2,000 samples, those longer than 100 tokens,")
        assert said is not None
        assert said in note


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        # A step holds what 200 sorted samples have in a row.
        (
            PoolSort(8, pool_size=200),
            "2.00 times those of fixed-batch (--batch-size). Tune the rate anew (Adam: from x 1",
        ),
        (FixedBatch(4), "1.00 times those of fixed-batch (--batch-size). The learning rate, its"),
    ],
)
def test_steps_of_like_lengths_are_warned_of_and_the_learning_rate_is_told(
    policy: Policy, rate: str
) -> None:
    advice = advice_of(lambda s: policy)
    composition = advice.prediction("even").figures["composition"]
    assert any(rate in note for note in advice.notes)
    warnings = [note for note in advice.notes if WARNING in note]
    if isinstance(policy, FixedBatch):
        assert composition == pytest.approx(1, abs=0.1)
        assert not warnings
        return
    assert composition < 0.1
    (warning,) = warnings
    assert f"(composition {composition:.2f}), which may cost quality" in warning
    assert f"composition {composition:.2f}, where 1 is random" in advice.recommendation.reason


# Predictions


COST = PaddedTokenCost()
UPDATE = 12_000
BUILDERS: Mapping[str, Build] = {
    "even": lambda s: Even(s.max_tokens, cost=s.cost),
    "token-budget": lambda s: TokenBudget(s.max_tokens, cost=s.cost),
    "fixed-batch": lambda s: FixedBatch(s.batch_size, cost=s.cost),
}


def run(
    length_sample: LengthSample,
    builders: Mapping[str, Build] = BUILDERS,
    *,
    max_tokens: int = 8192,
    cost: Cost = COST,
    seed: int = 5,
) -> dict[str, Prediction]:
    numbers = {"max_tokens": max_tokens, "batch_size": 3, "buffer_size": 128}
    numbers["update_tokens"] = UPDATE
    setup = set_up(length_sample, world_size=2, **numbers)
    found = predict(builders, length_sample, setup=setup, cost=cost, seed=seed)
    return {one.policy: one for one in found}


def length_sample_of(lengths: np.ndarray, total: int | None) -> LengthSample:
    return LengthSample(name="d", lengths=lengths, total=total, longest=None, how="")


def test_figures_of_all_samples_are_those_of_a_simulation_of_the_data() -> None:
    lengths = sample_lengths("mm-mix", 300, 3)
    found = run(length_sample_of(lengths, 300))
    shards = deal(300, 2, 5)
    for name, build in BUILDERS.items():
        policy = build(PolicyOptions(max_tokens=8192, batch_size=3, cost=PaddedTokenCost()))
        size = UpdateSize.of(policy, UPDATE, ranks=2, lengths=lengths)
        result = simulate(
            size.policy,
            [lengths[s] for s in shards],
            accumulate=size.accumulate,
            update_tokens=UPDATE,
            buffer_size=128,
            seed=5,
            identities=shards,
        )
        for figure in FIGURES:
            assert found[name].figures[figure] == getattr(result, figure)
