"""Lengths are summed up, settings follow from them, and the advice says what speaks against it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep
from evenstep.cost import PaddedTokenCost, TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan import Even, FixedBatch, Policy, PoolSort, TokenBudget
from evenstep.tools.advise import Advice, LengthSample, Range, Summary, advise, summarize
from evenstep.tools.advise.length_sample import return_on_investment
from evenstep.tools.advise.predict import Build
from evenstep.tools.advise.recommend import code_for, set_up
from evenstep.tools.simulate import sample_lengths


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


def test_what_the_user_gives_is_taken() -> None:
    setup = set_up(sample_of([5, 9]), world_size=2, max_tokens=9, buffer_size=7, batch_size=3)
    assert (setup.max_tokens, setup.buffer_size, setup.batch_size) == (9, 7, 3)


def test_a_budget_below_the_longest_sample_is_refused_with_the_remedies() -> None:
    with pytest.raises(ConfigurationError) as caught:
        set_up(sample_of([5, 30, 20], longest=50), world_size=2, max_tokens=10)
    for said in ("50 tokens", "max_tokens=10", "2 of the 3", "--max-tokens", "--max-length 10"):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("world_size", 0), ("max_tokens", 0), ("buffer_size", 0), ("batch_size", 0)],
)
def test_a_number_out_of_range_is_named(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=0"):
        set_up(sample_of([1]), **{"world_size": 1, name: value})  # type: ignore[arg-type]


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


@pytest.mark.parametrize("total", [None, 10**6])
def test_windows_that_grow_hold_enough_groups_of_max_tokens(total: int | None) -> None:
    lengths = np.full(1000, 100)
    lengths[7] = 20_000
    assert set_up(sample_of(lengths, total), world_size=2).target_tokens is None


# Summary


def ranges(summary: Summary) -> dict[str, Range]:
    values = {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary)}
    return {name: value for name, value in values.items() if isinstance(value, Range)}


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 9000))
def test_figures_of_all_samples_are_exact(lengths: list[int], max_tokens: int) -> None:
    array = np.array(lengths)
    summary = summarize(sample_of(array, len(array)), max_tokens)
    assert summary.mean.value == pytest.approx(sum(lengths) / len(lengths))
    assert summary.median.value == pytest.approx(np.median(array))
    assert summary.cv.value == pytest.approx(array.std() / array.mean())
    assert summary.short.value == sum(4 * n < max_tokens for n in lengths) / len(lengths)
    assert (summary.shortest, summary.longest) == (min(lengths), max(lengths))
    assert all(value.low == value.value == value.high for value in ranges(summary).values())


@settings(max_examples=5)
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=40), st.integers(0, 5))
def test_ranges_hold_the_value_and_are_repeatable(lengths: list[int], seed: int) -> None:
    length_sample = sample_of(np.array(lengths), None)
    summary = summarize(length_sample, 1000, seed)
    assert summary == summarize(length_sample, 1000, seed)
    for value in ranges(summary).values():
        assert 0 <= value.low <= value.value <= value.high


def test_ranges_hold_the_figures_of_all_the_data_nine_times_in_ten() -> None:
    everything = sample_lengths("sharegpt4o", 50_000, 1)
    truth = ranges(summarize(sample_of(everything, len(everything)), 12_288))
    held = dict.fromkeys(truth, 0)
    for seed in range(20):
        drawn = np.random.default_rng(seed).choice(everything, 500, replace=False)
        found = ranges(summarize(sample_of(drawn, len(everything)), 12_288, seed))
        for name, value in found.items():
            held[name] += value.low <= truth[name].value <= value.high
    # Of 20 with probability 0.9, fewer than 14 come once in 400; quantiles are rougher.
    assert all(count >= 14 for count in held.values()), held


@pytest.mark.parametrize(
    ("cv", "short", "word", "says"),
    [
        (0.8, 0.0, "high", "CV 0.80"),
        (0.1, 0.21, "high", "f_s 0.21"),
        (1.2, 0.5, "high", "CV 1.20 is at least 0.8 and f_s 0.50"),
        (0.5, 0.2, "small", "CV 0.50"),
        (0.1, 0.0, "small", "CV 0.10"),
        (0.65, 0.2, "moderate", "between"),
    ],
)
def test_the_screen_is_that_of_the_paper(cv: float, short: float, word: str, says: str) -> None:
    exact = Range.exact
    summary = Summary(
        mean=exact(1.0),
        median=exact(1.0),
        p95=exact(1.0),
        p99=exact(1.0),
        cv=exact(cv),
        short=exact(short),
        short_at_twice_mean=exact(0.07),
        longest=1,
        shortest=1,
        max_tokens=4,
    )
    found, meaning = return_on_investment(summary)
    assert found == word
    assert says in meaning
    # By f_s alone, which grows with the budget, it is not to be relied on.
    assert ("0.07" in meaning) == (word == "high" and cv < 0.8)


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


def test_steps_of_like_lengths_are_warned_of_in_one_sentence() -> None:
    advice = advice_of(lambda s: PoolSort(8, pool_size=200))
    composition = advice.prediction("even").figures["composition"].value
    assert composition < 0.1
    (warning,) = (note for note in advice.notes if WARNING in note)
    assert f"(composition {composition:.2f}), which may cost quality" in warning
    assert f"composition {composition:.2f}, where 1 is random" in advice.recommendation.reason


def test_random_steps_are_not_warned_of() -> None:
    advice = advice_of(lambda s: FixedBatch(8))
    assert advice.prediction("even").figures["composition"].value == pytest.approx(1, abs=0.1)
    assert not any(WARNING in note for note in advice.notes)


def test_rules_for_the_learning_rate_are_told_with_what_they_come_from() -> None:
    hint = advice_of(lambda s: FixedBatch(8)).learning_rate
    assert (hint.linear, hint.square_root) == pytest.approx((2, np.sqrt(2)))
    assert "1 x batch_size=4 of fixed-batch (--batch-size), or 1 x a group of even" in hint.text
    assert "16 and 32 samples" in hint.text
    assert "gives 2.00 times that rate, and the square-root rule to 1.41 times" in hint.text
    assert "Nothing applies either" in hint.text
