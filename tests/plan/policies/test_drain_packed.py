"""All that is left, in packed groups."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.cost import MemoryLimit
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policies.even.drain_packed import first_fit, share_out
from evenstep.plan.policy import Window


@st.composite
def windows(draw: st.DrawFn) -> Window:
    lengths = np.array(draw(st.lists(st.integers(1, 300), min_size=1, max_size=80)), np.int64)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Window(
        lengths=lengths, ages=np.zeros_like(lengths), patches=random.integers(0, 20, len(lengths))
    )


LIMITS = st.none() | st.integers(1, 40)


def memory(max_patches: int | None) -> MemoryLimit:
    return MemoryLimit(max_tokens=300, max_patches=max_patches, packed=True)


def check(window: Window, groups: Groups, max_patches: int | None) -> None:
    """All samples, each once, within the limits."""
    assert sorted(groups.members.tolist()) == list(range(len(window)))
    shapes = groups.shapes(window.lengths)
    assert (shapes.tokens <= 300).all()
    if max_patches is not None:
        patches = np.add.reduceat(window.patches[groups.members], groups.offsets[:-1])
        assert ((patches <= max_patches) | (shapes.samples == 1)).all()


@given(windows())
def test_no_two_groups_of_a_first_fit_could_be_one(window: Window) -> None:
    tokens = np.sort(first_fit(window, memory(None)).shapes(window.lengths).tokens)
    assert len(tokens) < 2 or tokens[0] + tokens[1] > 300


@given(windows(), LIMITS, st.data())
def test_all_is_shared_out_in_as_many_groups_as_asked_for(
    window: Window, limit: int | None, data: st.DataObject
) -> None:
    packed = first_fit(window, memory(limit))
    steps = data.draw(st.integers(len(packed), len(window)))
    added = window.lengths.astype(np.float64) ** 2
    groups = share_out(window, added, packed, steps, memory(limit))
    check(window, groups, limit)
    assert len(groups) == steps
    costs = np.add.reduceat(added[groups.members], groups.offsets[:-1])
    assert (np.diff(costs) <= 0).all()


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(0.5, 0.985))
def test_what_is_shared_out_costs_the_same(seed: int, fill: float) -> None:
    # Up to the point where groups have to be full: then one may be less so.
    lengths = np.random.default_rng(seed).integers(1, 60, 400).astype(np.int64)
    window = Window(lengths=lengths, ages=np.zeros_like(lengths))
    packed = first_fit(window, memory(None))
    steps = max(int(np.ceil(lengths.sum() / 300 / fill)), len(packed))
    added = lengths.astype(np.float64)
    groups = share_out(window, added, packed, steps, memory(None))
    costs = groups.shapes(lengths).tokens
    assert costs.max() <= 1.06 * costs.mean()
