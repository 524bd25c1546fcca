from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep_demos.packing.compare import compare
from evenstep_demos.packing.run import STEPS, suitable_context

CONTEXT = 4096


def lengths_of(count: int, longest: int = 3 * CONTEXT, seed: int = 0) -> np.ndarray:
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(400), 1.2, count))
    return drawn.astype(np.int64).clip(1, longest)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3 * 256), min_size=20, max_size=200),
    micro_batches=st.integers(1, 5),
)
def test_every_document_is_trained_on_once_and_no_micro_batch_exceeds_its_cap(
    lengths: list[int], micro_batches: int
) -> None:
    total = sum(lengths)
    if total < 256 * micro_batches:
        lengths, total = [*lengths, 256 * micro_batches], total + 256 * micro_batches
    for packed in compare(np.array(lengths), context=256, micro_batches=micro_batches):
        epoch = packed.epoch
        assert (epoch.documents_out, epoch.documents_waiting) == (epoch.documents_in, 0)
        assert round(epoch.tokens_per_step * epoch.steps) == total
        assert epoch.max_tokens <= (256 if packed.name == "original" else 320)


def test_packing_by_cost_is_more_even_and_cuts_fewer_documents() -> None:
    cost = DocumentCost(linear=768)
    lengths = lengths_of(4000)
    original, wlb, steady = compare(lengths, context=CONTEXT, micro_batches=4, cost=cost)
    for packed in (wlb, steady):
        assert packed.arriving.imbalance < 1 + 0.5 * (original.arriving.imbalance - 1)
        assert packed.makespan(ordered=False) < original.makespan(ordered=False)
        assert packed.documents_cut == (lengths > CONTEXT).sum() < original.documents_cut
    assert steady.arriving.tokens_per_step_cv < wlb.arriving.tokens_per_step_cv
    assert wlb.thresholds
    assert wlb.epoch.token_delay_mean > 0 == original.epoch.token_delay_mean


def test_steps_after_the_last_arrival_are_counted_apart_and_figures_are_json() -> None:
    for packed in compare(lengths_of(1500), context=CONTEXT, micro_batches=4):
        json.dumps(packed.as_dict(), allow_nan=False)
        assert packed.arriving.steps == lengths_of(1500).sum() // (4 * CONTEXT)
        assert packed.last_steps == packed.epoch.steps - packed.arriving.steps >= 1


def test_less_than_a_step_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="smaller context"):
        compare(np.array([100, 200]), context=CONTEXT, micro_batches=4)


def test_the_context_leaves_enough_steps_and_is_the_largest_that_does() -> None:
    for tokens in (2**20, 30_000_000, 10**12):
        context = suitable_context(tokens, 4)
        assert tokens // (4 * context) >= STEPS
        assert context == 131_072 or tokens // (8 * context) < STEPS
    assert suitable_context(1000, 4) == 256
