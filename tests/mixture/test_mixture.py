"""Draws of a mixture: shares, order, resume, replay, and the end of sources."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mixing_world import Arrays, AtOnce, drawn, steps, through_json, weights_of, worlds

from evenstep.errors import ConfigurationError, InvariantError, MismatchError, SampleError
from evenstep.mixture import (
    FeedbackSchedule,
    LengthCurriculum,
    Mixer,
    PerStep,
    Staged,
    WarmUp,
)
from evenstep.mixture.sample_table import SampleTable


@st.composite
def options(draw: st.DrawFn, sources: list[str]) -> dict:
    amounts = [{"samples_per_step": 7}, {"samples_per_step": 40}, {"tokens_per_step": 2_000}]
    weights = weights_of(sources)
    schedules = st.one_of(
        weights,
        st.builds(WarmUp, start=weights, end=weights, steps=st.just(4)),
        st.builds(lambda first, then: Staged({0: first, 3: then}), weights, weights),
    )
    limits = draw(st.sampled_from([None, {0: 1_000}, {0: 30, 5: 1_000}, {0: 100, 4: None}]))
    return {
        **draw(st.sampled_from(amounts)),
        "schedule": draw(schedules),
        "by": draw(st.sampled_from(["samples", "tokens"])),
        "stop": draw(st.sampled_from(["repeat", "first_exhausted", "all_exhausted"])),
        "curriculum": limits and LengthCurriculum(limits),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


class Made:
    """Sources, and mixtures of them that are all equal."""

    def __init__(self, world, given_options, known):
        self.given, self.world = dict(given_options), world
        self.endless = self.given["stop"] == "repeat"
        self.sizes = Arrays(world).sizes if known else None
        # What a curriculum never admits, and a stage that comes too late.
        self.may_refuse = bool(self.given["curriculum"]) or self.given["stop"] == "all_exhausted"

    def mixture(self) -> Mixer:
        return Mixer(list(self.world), sizes=self.sizes, **self.given)

    def provider(self) -> Arrays:
        return Arrays(self.world, endless=self.endless)

    def run(self, count):
        """Draws and states of the first steps; fewer where a curriculum is refused."""
        mixture, provider = self.mixture(), self.provider()
        states, tables = [through_json(mixture.state_dict())], []
        while len(tables) < count and not mixture.ended:
            try:
                tables.append(mixture.draw(mixture.step, provider))
            except SampleError:
                if not self.may_refuse:
                    raise
                break
            states.append(through_json(mixture.state_dict()))
        return tables, states


@st.composite
def made(draw: st.DrawFn) -> Made:
    world = draw(worlds())
    return Made(world, draw(options(list(world))), draw(st.booleans()))


@settings(max_examples=settings.default.max_examples // 2)
@given(made())
def test_draws_come_again_from_states_and_however_they_are_asked_for(one):
    tables, states = one.run(8)
    for at, state in enumerate(states):
        mixture, provider = one.mixture(), one.provider()
        mixture.load_state_dict(state)
        assert through_json(mixture.state_dict()) == state
        for table in tables[at:]:
            assert mixture.draw(mixture.step, provider) == table
        assert through_json(mixture.state_dict()) == states[-1]
    asked, kept = one.mixture(), []
    many = AtOnce(one.world, endless=one.endless)
    for step, table in enumerate(tables):
        kept.append(asked.state)  # which does not change as the mixture goes on
        asked.weights_at(step + 3)  # for it nothing changes either
        for _ in range(2):
            assert asked.draw(step, many) == table
            assert through_json(asked.state_dict()) == states[step + 1]
    assert [through_json(asked.state_dict(each)) for each in kept] == states[: len(tables)]


@given(made())
def test_every_sample_comes_once_in_order_or_waits_and_limits_of_a_step_hold(one):
    tables, states = one.run(8)
    for number, name in enumerate(one.world):
        found = [p for t in tables for s, p in drawn(t) if s == number]
        state = states[-1]["sources"][name]
        waiting = state["waiting"].get("position", [])
        assert sorted(found + waiting) == list(range(state["cursor"]))
        if one.given["curriculum"] is None:
            assert found == sorted(found)
        for table in tables:  # what waited is older, so within a step positions ascend as well
            inside = table.position[table.source == number]
            assert (np.diff(inside) > 0).all()
    ended = states[-1]["ended"]
    for step, table in enumerate(tables):
        if "tokens_per_step" in one.given:
            assert int(table.lengths["text"].sum()) <= one.given["tokens_per_step"]
        else:
            assert len(table) <= one.given["samples_per_step"]
            last = ended and step == len(tables) - 1
            if not last and one.given["curriculum"] is None:
                assert len(table) == one.given["samples_per_step"]
        limit = one.given["curriculum"] and one.given["curriculum"].limit(step)
        if limit and len(table):
            assert table.lengths["text"].max() <= limit


# Shares


@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 20), min_size=2, max_size=4),
    st.sampled_from(
        [{"samples_per_step": 1}, {"samples_per_step": 40}, {"tokens_per_step": 30_000}]
    ),
    st.lists(st.floats(1, 3.4), min_size=4, max_size=4),
)
@example(9, [1, 3, 5], {"samples_per_step": 40}, [1.0, 1.0, 2.75, 1.0])
def test_shares_of_tokens_miss_the_weights_by_some_samples_however_long_it_runs(
    seed, weights, amount, magnitudes
):
    random = np.random.default_rng(seed)
    world = {
        f"s{k}": random.lognormal(np.log(10) * magnitudes[k], 0.7, 50).astype(int).clip(1, 30_000)
        for k in range(len(weights))
    }
    mixture = Mixer(list(world), dict(zip(world, weights)), by="tokens", seed=seed, **amount)
    provider = Arrays(world)
    longest = max(int(lengths.max()) for lengths in world.values())
    share = np.array(weights) / sum(weights)
    given_tokens = np.zeros(len(weights))
    for step in range(60):
        table = mixture.draw(step, provider)
        given_tokens += np.bincount(table.source, table.lengths["text"], len(weights))
        miss = np.abs(given_tokens - share * given_tokens.sum())
        assert miss.max() <= 2 * longest


def test_sample_shares_are_not_bent_by_a_budget():
    """A draw that would exceed the budget is left out, and it is one of a long sample mostly. If
    nothing made up for it, the long source would have well below half of the draws."""
    world = {"short": [100], "long": [900]}
    mixture = Mixer(list(world), {"short": 1, "long": 1}, tokens_per_step=1500)
    provider = Arrays(world)
    counts = sum((mixture.draw(s, provider).counts() for s in range(400)), np.zeros(2, int))
    assert abs(counts[1] / counts.sum() - 0.5) < 0.01


# Ends


@given(worlds(), st.sampled_from(["first_exhausted", "all_exhausted"]), st.booleans(), st.data())
def test_where_sources_end(world, stop, known, data):
    weights = {name: data.draw(st.integers(1, 9)) for name in world}
    arrays = Arrays(world, endless=False)
    mixture = Mixer(
        list(world),
        weights,
        samples_per_step=data.draw(st.integers(1, 40)),
        by=data.draw(st.sampled_from(["samples", "tokens"])),
        stop=stop,
        sizes=arrays.sizes if known else None,
    )
    found = steps(mixture, arrays, 10_000)
    assert mixture.ended
    assert all(found), "no step is empty"
    counts = np.bincount([s for step in found for s, _ in step], minlength=len(world))
    sizes = np.array(list(arrays.sizes.values()))
    if stop == "all_exhausted":
        assert (counts == sizes).all()
    else:
        assert (counts <= sizes).all()
        assert (counts == sizes).sum() == 1, "it ends with the last sample of the first to end"
    for _ in range(2):
        assert len(mixture.draw(mixture.step, arrays)) == 0


@given(worlds(), st.integers(1, 40), st.data())
def test_all_repeated_ends_once_each_source_was_read(world, count, data):
    weights = {name: data.draw(st.integers(1, 9)) for name in world}
    arrays = Arrays(world)
    mixture = Mixer(
        list(world), weights, samples_per_step=count, stop="all_repeated", sizes=arrays.sizes
    )
    found = steps(mixture, arrays, 100_000)
    counts = np.bincount([s for step in found for s, _ in step], minlength=len(world))
    over = counts - np.array(list(arrays.sizes.values()))
    assert over.min() == 0
    if len(found) > 1:
        before = np.bincount([s for step in found[:-1] for s, _ in step], minlength=len(world))
        assert (before - np.array(list(arrays.sizes.values()))).min() < 0


def test_a_repeated_source_that_ends_is_refused_with_the_position():
    mixture = Mixer(["a"], {"a": 1}, samples_per_step=4)
    arrays = Arrays({"a": [1] * 6}, endless=False)
    before = mixture.draw(0, arrays), mixture.state_dict()
    with pytest.raises(SampleError, match=r"'a' has ended at position 6.*first_exhausted"):
        mixture.draw(1, arrays)
    assert mixture.state_dict() == before[1]
    assert mixture.draw(0, arrays) == before[0]


# Curriculum


def test_what_is_too_long_waits_in_order_and_comes_first_when_admitted():
    lengths = [5, 50, 6, 55, 7, 8, 60, 70, 2]
    curriculum = LengthCurriculum({0: 10, 2: 60, 3: None}, linear=False)
    mixture = Mixer(
        ["a"], {"a": 1}, samples_per_step=2, curriculum=curriculum, stop="all_exhausted"
    )
    found = steps(mixture, Arrays({"a": lengths}, endless=False), 10)
    assert [[p for _, p in step] for step in found] == [[0, 2], [4, 5], [1, 3], [6, 7], [8]]
    assert mixture.ended


def test_limits_grow_in_equal_parts():
    grows = LengthCurriculum({0: 100, 10: 200, 20: None})
    assert [grows.limit(s) for s in (0, 1, 5, 9, 10, 19, 20, 99)] == [
        100, 110, 150, 190, 200, 200, None, None,
    ]  # fmt: skip
    assert [LengthCurriculum({0: 100, 10: 200}, linear=False).limit(s) for s in (9, 10)] == [
        100,
        200,
    ]


# States and records


def test_sources_may_be_added_and_reordered_but_not_lost():
    mixture = Mixer(["a", "b"], {"a": 1, "b": 1}, samples_per_step=8)
    mixture.draw(0, Arrays({"a": [1], "b": [1]}))
    state = through_json(mixture.state_dict())
    more = Mixer(["c", "b", "a"], {"a": 1, "b": 1, "c": 1}, samples_per_step=30)
    more.load_state_dict(state)
    table = more.draw(1, Arrays({"c": [1], "b": [1], "a": [1]}))
    begins = [int(table.position[table.source == s].min()) for s in range(3)]
    assert begins == [0, state["sources"]["b"]["cursor"], state["sources"]["a"]["cursor"]]
    with pytest.raises(MismatchError, match=r"source 'b'.*weight 0"):
        Mixer(["a"], {"a": 1}, samples_per_step=8).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seed": 1}, "saved with seed=1"),
        ({"by": "tokens"}, "saved with by='tokens'"),
        ({"of": "service"}, "of='mixture' was expected, and this one has .*of='service'"),
    ],
)
def test_a_state_of_something_else_is_refused(change, match):
    mixture = Mixer(["a"], {"a": 1}, samples_per_step=8)
    with pytest.raises(MismatchError, match=match):
        mixture.load_state_dict({**mixture.state_dict(), **change})


# Live weights


def test_live_weights_follow_reports():
    asked = []

    def follow(last, signals):
        asked.append((dict(last), dict(signals)))
        return {name: 1 + loss for name, loss in signals["loss_by_source"].items()}

    def made():
        return Mixer(
            ["a", "b"],
            FeedbackSchedule(initial={"a": 1}, function=follow, every=2),
            samples_per_step=4,
        )

    mixture, arrays = made(), Arrays({"a": [1], "b": [1]})
    weights = []
    for step in range(5):
        if step == 1:
            kept = mixture.state
            mixture.report(loss_by_source={"a": np.float32(0.5), "b": 3})
            assert kept.signals == {}, "a state that is kept has the signals of its time"
        mixture.draw(step, arrays)
        weights.append(mixture.record.weights)
    assert weights == [{"a": 1}, {"a": 1}, *[{"a": 1.5, "b": 4}] * 3]
    assert mixture.weights_at(4) == {"a": 1.5, "b": 4}
    assert [last for last, _ in asked] == [{"a": 1}, {"a": 1.5, "b": 4}]
    assert mixture.state.signals == {"loss_by_source": {"a": 0.5, "b": 3}}


# Misuse


def schedules_of(bad):
    yield lambda: bad
    yield lambda: Staged({0: {"a": 1}, 9: bad})
    yield lambda: WarmUp(start={"a": 1}, end=bad, steps=9)
    yield lambda: PerStep(lambda step: bad)
    yield lambda: FeedbackSchedule(initial=bad, function=lambda w, s: w)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"a": 0, "b": 0}, "sum to 0.0.*positive weight"),
        ({}, "sum to 0"),
        ({"a": -0.1, "b": 1}, "a=-0.1 must be a finite number from 0"),
        ({"a": float("nan")}, "a=nan must be a finite number"),
        ({"a": "1"}, "a='1' must be a number"),
        ({"a": 1, "d": 1}, "'d', which is not a source; the sources are a, b"),
        ({0: 1}, "key 0"),
    ],
)
def test_bad_weights_are_refused_where_the_mixture_is_built(bad, says):
    for schedule in schedules_of(bad):
        with pytest.raises(ConfigurationError, match=says):
            Mixer(["a", "b"], schedule(), samples_per_step=1)


@pytest.mark.parametrize(
    ("options", "lengths", "said"),
    [
        (
            {"tokens_per_step": 100},
            {"a": [60, 101]},
            r"sample a\[0\]\[1\] has 101 tokens, over tokens_per_step=100",
        ),
        (
            {"samples_per_step": 4, "by": "tokens"},
            {"a": [0], "b": [5]},
            "source 'a' have no tokens",
        ),
        (
            {"samples_per_step": 2, "curriculum": LengthCurriculum({0: 10}, max_waiting=50)},
            {"a": [99]},
            "samples of source 'a' are longer than the 10 tokens",
        ),
        (
            {
                "samples_per_step": 2,
                "curriculum": LengthCurriculum({0: 10}),
                "stop": "all_exhausted",
            },
            {"a": [1, 99, 1]},
            "step 1: all samples that are left are longer.*'a': 1",
        ),
        (
            {
                "samples_per_step": 4,
                "schedule": Staged({0: {"a": 1}, 100: {"b": 1}}),
                "stop": "all_exhausted",
            },
            {"a": [1] * 8, "b": [1] * 8},
            "step 1 every source that has a weight has ended, and 'b'",
        ),
    ],
)
def test_a_step_that_cannot_be_drawn_says_why(options, lengths, said):
    given = {"schedule": dict.fromkeys(lengths, 1), **options}
    mixture = Mixer(list(lengths), given.pop("schedule"), **given)
    with pytest.raises(SampleError, match=said):
        steps(mixture, Arrays(lengths, endless="stop" not in options), 50)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda table: table[::-1],
        lambda table: SampleTable.concatenate([table, table[:1]]),
        lambda table: table[np.argsort(-table.source, kind="stable")],
    ],
)
def test_a_provider_that_mixes_sources_or_positions_up_is_found_out(wrong):
    class Wrong(AtOnce):
        def ahead_of_many(self, sources, positions, counts):
            return wrong(super().ahead_of_many(sources, positions, counts))

    mixture = Mixer(["a", "b"], {"a": 1, "b": 1}, samples_per_step=4)
    with pytest.raises(InvariantError, match=r"asked for \[2, 2\] samples of sources \['a', 'b'\]"):
        mixture.draw(0, Wrong({"a": [1], "b": [1]}))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            WarmUp(start={"a": 4}, end={"a": 1, "b": 3}, steps=4, begin=2),
            [0, 0, 0, 0.1875, 0.375, 0.5625, 0.75, 0.75],
        ),
        (
            Staged({0: {"a": 1}, 4: WarmUp(start={"a": 1}, end={"b": 1}, steps=2, begin=4)}),
            [0, 0, 0, 0, 0, 0.5, 1, 1],
        ),
    ],
)
def test_a_warm_up_goes_in_equal_parts_and_may_be_a_stage(schedule, expected):
    mixture = Mixer(["a", "b"], schedule, samples_per_step=1)
    found = [mixture.weights_at(step).get("b", 0.0) for step in range(8)]
    assert found == pytest.approx(expected)


def test_a_step_may_be_drawn_with_weights_of_its_own():
    def mixture():
        return Mixer(["a", "b"], {"a": 1}, samples_per_step=4)

    one, arrays, weights = mixture(), Arrays({"a": [1], "b": [1]}), []
    schedules = [
        None,
        {"b": 2},
        lambda step: {"a": step, "b": step},
        WarmUp(start={"a": 1}, end={"b": 1}, steps=6),
    ]
    tables = []
    for step, schedule in enumerate(schedules):
        tables.append(one.draw_with(step, arrays, schedule))
        weights.append(dict(one.record.weights))
    assert weights == [
        {"a": 1},
        {"b": 2},
        {"a": 2, "b": 2},
        {"a": 0.5, "b": 0.5},
    ]
    assert tables[1].source.tolist() == [1] * 4
    with pytest.raises(
        ConfigurationError, match="weights of step 4 name 'c', which is not a source"
    ):
        one.draw_with(4, arrays, {"c": 1})
