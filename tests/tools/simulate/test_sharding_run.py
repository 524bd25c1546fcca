"""Sequences are full, and figures are those of the plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import METHODS, shard
from evenstep.tools.simulate.sharding_run import draw_sequences, run_sharding


def test_sequences_are_full_and_together_are_the_stream_of_documents(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([30, 50, 45, 200, 10]))
    drawn = draw_sequences(str(path), context=100)
    assert [own.tolist() for own in drawn] == [[30, 50, 20], [25, 75], [100]]
    assert len(draw_sequences(str(path), context=100, sequences=2)) == 2
    assert len(draw_sequences(str(path), context=100, sequences=9)) == 3


@pytest.mark.parametrize("name", ["pretrain-128k", "mm-mix"])
def test_of_a_distribution_as_many_sequences_are_drawn_as_wanted(name: str) -> None:
    for seed in range(5):
        drawn = draw_sequences(name, context=4096, sequences=7, seed=seed)
        assert [int(own.sum()) for own in drawn] == [4096] * 7
    again = draw_sequences(name, context=4096, sequences=7, seed=4)
    assert all(np.array_equal(one, two) for one, two in zip(drawn, again))


def test_a_file_of_less_than_one_sequence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([30, 50]))
    with pytest.raises(ConfigurationError, match="80 tokens, less than one sequence of 100"):
        draw_sequences(str(path), context=100)


def test_no_sequences_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no sequences"):
        run_sharding([], 2)


def test_figures_are_those_of_the_plans() -> None:
    sequences = draw_sequences("pretrain-128k", context=16_384, sequences=12)
    seen: list[tuple[int, int]] = []
    found = run_sharding(sequences, 4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 12) for done in range(1, 13)]
    imbalances = []
    for method in METHODS:
        plans = [shard(own, 4, methods=(method,)) for own in sequences]
        pairs = [plan.pairs.max() * 4 / plan.pairs.sum() for plan in plans]
        tiles = [plan.tiles().max() * 128**2 * 4 / plan.pairs.sum() for plan in plans]
        key = method.replace("-", "_")
        assert found[f"pair_imbalance_{key}"] == pytest.approx(np.mean(pairs))
        assert found[f"pair_imbalance_{key}_max"] == pytest.approx(max(pairs))
        assert found[f"tile_imbalance_{key}"] == pytest.approx(np.mean(tiles))
        assert found[f"tile_imbalance_{key}_max"] == pytest.approx(max(tiles))
        fragments = np.mean([len(plan.document) / 4 for plan in plans])
        assert found[f"fragments_per_rank_{key}"] == pytest.approx(fragments)
        chosen = [shard(own, 4).method for own in sequences]
        assert found[f"chosen_{key}"] == chosen.count(method)
        imbalances.append(tiles)
    # Adaptive sharding takes the best of each, and so does the oracle.
    least = np.min(imbalances, axis=0)
    assert found["tile_imbalance_adaptive"] == pytest.approx(least.mean())
    assert found["tile_imbalance_oracle"] == pytest.approx(least.mean())
    assert found["tile_imbalance_oracle_max"] == pytest.approx(least.max())


def test_padding_is_measured() -> None:
    assert run_sharding([np.array([16])], 4)["padding"] == 0
    # Ranks of 5, 4, 4 and 4 tokens.
    uneven = run_sharding([np.array([17])], 4)
    assert uneven["padding"] == pytest.approx(3 / 20)
    assert (uneven["tokens_per_rank_min"], uneven["tokens_per_rank_max"]) == (4, 5)
