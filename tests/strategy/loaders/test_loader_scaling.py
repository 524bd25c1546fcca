"""Scaling is there in time, does not flap, and keeps its limits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from heavy_tails import MIB, model_of, profiles_of
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.mixture import WarmUp
from evenstep.strategy.loaders import (
    LiveScaling,
    LoadModel,
    ScalingLimits,
    draws_of,
    groups_of_layout,
    packed,
    scaling_plan,
    weights_ahead,
)
from evenstep.strategy.loaders.load_model import Piece

QUICK, SLOW = 0.0002, 0.03
STEP = {"samples": 256, "memory": 8192 * MIB, "step_seconds": 0.5, "workers": 4}


def text_and_images() -> list:
    text, images = (
        profiles_of(1, 0, prepare_seconds=s, prepare_high=s, send_seconds=0.0)[0]
        for s in (QUICK, SLOW)
    )
    return [text, type(images)(**{**images.as_dict(), "source": "images"})]


def moving(shares: np.ndarray) -> LoadModel:
    """256 samples a step, of which that share are images."""
    return model_of(text_and_images(), np.stack([1 - shares, shares], axis=1), **STEP)


GROUPS = [[Piece(0, 1)], [Piece(1, 1)]]
shares_of_steps = st.lists(st.floats(0, 0.9), min_size=1, max_size=60).map(np.array)


@settings(max_examples=20, deadline=None)
@given(shares=shares_of_steps, lead=st.integers(0, 9), hold=st.integers(0, 9))
def test_what_a_step_needs_is_there_before_and_after_it(shares, lead, hold) -> None:
    limits = ScalingLimits(lead=lead, hold=hold, most_loaders=6)
    model = moving(shares)
    plan = scaling_plan(model, GROUPS, limits)
    for there, needed in (
        (plan.loaders, plan.needs.loaders),
        (plan.workers, plan.needs.workers),
    ):
        for step in range(len(shares)):
            around = slice(max(step - lead, 0), step + hold + 1)
            assert (there[around] >= needed[step]).all()
            near = needed[max(step - hold, 0) : step + lead + 1]
            assert (there[step] == near.max(axis=0)).all()  # and no more than that
    assert plan.workers.max() <= model.limits.workers
    assert plan.loaders.max() <= limits.most_loaders


@settings(max_examples=20, deadline=None)
@given(shares=shares_of_steps, cut=st.integers(1, 60))
def test_a_longer_look_ahead_changes_nothing_of_the_steps_before(shares, cut) -> None:
    limits = ScalingLimits(lead=4, hold=3)
    model = moving(shares)
    whole = scaling_plan(model, GROUPS, limits)
    part = scaling_plan(model.at(model.draws[:cut]), GROUPS, limits)
    same = max(min(cut, len(shares)) - limits.lead, 0)
    assert (whole.workers[:same] == part.workers[:same]).all()
    assert (whole.loaders[:same] == part.loaders[:same]).all()


def test_enough_is_enough_and_too_little_is_said() -> None:
    limits = ScalingLimits(most_loaders=3)
    needs = scaling_plan(moving(np.array([0.0, 0.05, 0.1, 0.3, 0.7])), GROUPS, limits).needs
    # 256 x 0.03 s x share, of which a process takes 0.4 s: 0, 1, 2, 6 and 14 of them, at most 4 a
    # loader; the first it does by itself.
    assert needs.loaders[:, 1].tolist() == [1, 1, 1, 2, 3]
    assert needs.workers[:, 1].tolist() == [0, 0, 2, 3, 4]
    assert needs.short[:, 1].tolist() == [False] * 4 + [True]


def test_a_schedule_is_scaled_for_before_its_weights_move() -> None:
    """From cheap text to images, as the mixture of a vision model does."""
    schedule = WarmUp(start={"s0": 0.9, "images": 0.1}, end={"images": 0.6, "s0": 0.4}, steps=50)
    profiles = text_and_images()
    tokens = np.array([profile.tokens for profile in profiles])
    weights = weights_ahead(schedule, ["s0", "images"], range(80))
    draws = draws_of(weights, tokens, samples_per_step=256)
    model = moving(np.array([0.1])).at(draws)
    groups = groups_of_layout(packed(model.at(draws[:1])))
    plan = scaling_plan(model, groups, ScalingLimits(lead=5, hold=5))
    assert not plan.needs.short.any()
    processes = (plan.loaders * (1 + plan.workers)).sum(axis=1)
    assert (np.diff(processes[:50]) >= -1).all()
    assert processes[-1] > 3 * processes[0]
    there = np.hstack([plan.loaders, plan.workers])
    assert (there[1:] != there[:-1]).any(axis=1).sum() < 20


@settings(max_examples=4, deadline=None)
@given(share=st.floats(0.02, 0.5), noise=st.integers(0, 1000))
def test_live_weights_that_only_flicker_change_nothing(share, noise) -> None:
    live = LiveScaling(
        moving(np.array([share])), GROUPS, ScalingLimits(hold=8), patience=4, memory=0.9
    )
    states = [live.first()]
    rng = np.random.default_rng(noise)
    for _ in range(30):
        images = 256 * share * rng.uniform(0.98, 1.02)
        states.append(live.after(states[-1], np.array([256 - images, images])))
    there = [(s.loaders.tolist(), s.workers.tolist()) for s in states]
    assert sum(a != b for a, b in pairwise(there)) <= 1


def test_live_weights_are_followed_up_at_once_and_down_after_a_while() -> None:
    live = LiveScaling(moving(np.array([0.02])), GROUPS, ScalingLimits(hold=6), patience=2)
    states = [live.first()]
    for step in range(60):
        images = 256 * (0.3 if 10 <= step < 30 else 0.02)
        states.append(live.after(states[-1], np.array([256 - images, images])))
    processes = [int(s.loaders[1] * (1 + s.workers[1])) for s in states]
    assert len(set(processes[:12])) == 1  # one look is not enough
    assert max(processes[12:22]) > 2 * processes[0]
    assert processes[36] == max(processes)  # less was needed for six looks only
    assert processes[-1] == processes[0]
    raised = [a < b for a, b in pairwise(processes)]
    assert not any(raised[31:])
