from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenstep
from benchmarks.planning.image_cells import drawn_images
from evenstep.batch import Composition
from evenstep.cost import PaddedTokenCost, TransformerCost, VisionLanguageCost
from evenstep.plan import Even, FixedBatch, Policy, PoolSort, TokenBudget
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.result import measure
from evenstep.tools.simulate.run import deal, run_epoch, simulate
from few_steps import FewSteps

POLICIES = (TokenBudget(64), FewSteps(64, steps=2), FixedBatch(3))
lengths_lists = st.lists(st.integers(1, 64), max_size=40)


def arrays(*shards: list[int]) -> list[np.ndarray]:
    return [np.array(shard, np.int64) for shard in shards]


@given(count=st.integers(1, 100), world_size=st.integers(1, 9), seed=st.integers(0, 2**40))
def test_dealing_covers_every_sample_and_pads_only_to_equal_shards(
    count: int, world_size: int, seed: int
) -> None:
    shards = deal(count, world_size, seed)
    assert len(shards) == world_size
    assert {len(shard) for shard in shards} == {-(-count // world_size)}
    given_counts = np.bincount(np.concatenate(shards), minlength=count)
    assert len(given_counts) == count
    assert given_counts.min() >= 1
    if count >= world_size:
        assert given_counts.max() <= 2


@settings(max_examples=30, deadline=None)
@given(
    shards=st.lists(lengths_lists, min_size=1, max_size=4).filter(any),
    policy=st.sampled_from(POLICIES),
    exhausted=st.sampled_from(["pad", "stop"]),
)
def test_the_reported_figures_are_consistent_with_the_costs_of_the_steps(
    shards: list[list[int]], policy: Policy, exhausted: str
) -> None:
    cost = PaddedTokenCost()
    epoch = run_epoch(policy, arrays(*shards), buffer_size=8, exhausted=exhausted)
    result = measure(policy, cost, epoch)
    assert result.costs.shape == (result.steps, len(shards))
    assert result.emitted + result.missing == result.samples == sum(map(len, shards))
    assert result.missing == result.dropped + result.undelivered
    assert result.filler_steps == (result.costs == 0).sum()
    if exhausted == "stop":
        assert result.filler_steps == 0
    else:
        assert result.missing == 0
    if result.steps:
        assert (result.costs.max(axis=1) > 0).all()
        real = result.tokens_per_step * result.steps
        assert result.padding == pytest.approx(1 - real / result.costs.sum())
        largest = result.costs.max(axis=1).sum()
        assert result.efficiency == pytest.approx(real / (len(shards) * largest))
        assert 1 <= result.imbalance <= len(shards) + 1e-9
        assert result.samples_per_step * result.steps == pytest.approx(result.emitted)


def test_figures_of_one_step_worked_out_by_hand() -> None:
    # Padded to 2 x 10 and 2 x 4 tokens, of which 12 and 8 are real.
    result = simulate(FixedBatch(2, cost=PaddedTokenCost()), arrays([10, 2], [4, 4]))
    assert result.steps == 1
    assert result.costs.tolist() == [[20.0, 8.0]]
    assert result.padding == pytest.approx(1 - 20 / 28)
    assert result.imbalance == pytest.approx(20 / 14)
    assert result.efficiency == pytest.approx(20 / 40)
    assert (result.samples_per_step, result.tokens_per_step) == (4, 20)


def test_imbalance_weighs_steps_by_cost_and_its_percentile_does_not() -> None:
    policy = FixedBatch(1, cost=PaddedTokenCost())
    result = simulate(policy, arrays([300, 1], [300, 3]), buffer_size=2)
    assert result.costs.tolist() == [[300, 300], [1, 3]]
    assert result.imbalance == pytest.approx(303 / 302)
    assert result.imbalance_p95 == pytest.approx(np.quantile([1.0, 1.5], 0.95))


def test_what_is_not_delivered_or_dropped_is_missing_and_counted() -> None:
    policy = TokenBudget(8)
    epoch = run_epoch(policy, arrays([3] * 4, []), exhausted="stop")
    result = measure(policy, policy.cost, epoch)
    assert (result.steps, result.emitted) == (0, 0)
    assert result.missing == result.undelivered == 4
    assert (result.padding, result.imbalance, result.efficiency) == (0.0, 1.0, 0.0)
    assert (result.composition, result.samples_per_update) == (1.0, 0.0)
    dropped = simulate(FixedBatch(3, drop_last=True), arrays([1] * 7, [1] * 7))
    assert (dropped.emitted, dropped.dropped, dropped.missing) == (12, 2, 2)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_training_reads_off_what_simulate_says(accumulate: int) -> None:
    lengths, policy = sample_lengths("ultrachat", 150, 0) // 16 + 1, TokenBudget(512)
    loader = evenstep.DataLoader(
        [{"input_ids": torch.zeros(int(length), dtype=torch.int64)} for length in lengths],
        policy=policy,
        memory=evenstep.Memory(buffer_size=32),
        accumulate=accumulate,
        shuffle=False,
    )
    trained, updates = Composition(), 0
    for _, step in loader.steps():
        trained.add(step)
        updates += step.ends_update  # as the last of an epoch does
        assert trained.updates == updates
    simulated = simulate(policy, [lengths], buffer_size=32, accumulate=accumulate)
    assert simulated.steps % 3
    assert trained.value == pytest.approx(simulated.composition, rel=1e-12)
    assert trained.samples_per_update == simulated.samples_per_update
    assert trained.tokens_per_update_cv == pytest.approx(simulated.tokens_per_update_cv)


def test_composition_tells_random_batches_from_sorted_ones() -> None:
    lengths = sample_lengths("ultrachat", 4_000, 0)
    shards = [lengths[shard] for shard in deal(len(lengths), 4)]
    random = simulate(FixedBatch(8), shards)
    by_length = simulate(PoolSort(8, pool_size=200), shards)
    assert random.composition == pytest.approx(1, abs=0.05)
    assert by_length.composition < 0.1
    assert random.tokens_per_update_cv < by_length.tokens_per_update_cv


def test_a_result_tells_the_parts_apart_where_the_cost_does() -> None:
    rows = drawn_images(sample_lengths("mm-mix", 200), "coyo-image", 0)
    shards = [rows[:, shard] for shard in deal(200, 2)]
    language = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
    tower = TransformerCost.vision(layers=2, hidden_size=64, heads=4, ffn_size=128)
    text = simulate(Even(16_384, cost=language), shards)
    assert (text.images, text.patches) == (rows[2].sum(), rows[1].sum())
    assert text.vision_imbalance is None
    both = VisionLanguageCost(language=language, vision=tower)
    result = simulate(Even(16_384, cost=both), shards)
    assert result.vision_costs is not None
    language_costs = result.costs - result.vision_costs
    expected = language_costs.max(axis=1).sum() / language_costs.mean(axis=1).sum()
    assert result.text_imbalance == pytest.approx(expected)
    assert "vision_costs" not in result.as_dict()
    bare = simulate(Even(16_384, cost=language), [shard[0] for shard in shards])
    assert "images" not in bare.as_dict()
