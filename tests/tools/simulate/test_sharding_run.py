"""Sequences are full, figures are what the plans say, and each way keeps what it promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import METHODS, TileLatency, shard, shard_per_document
from evenstep.tools.simulate.sharding_run import draw_sequences, run_sharding

CONTEXT = 131_072


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
    sequences = [np.array([700, 1348]), np.array([2000, 30, 18])]
    seen: list[tuple[int, int]] = []
    figures = run_sharding(
        sequences, 4, tile=16, progress=lambda done, total: seen.append((done, total))
    ).as_dict()
    assert seen == [(1, 2), (2, 2)]
    plans = [shard_per_document(own, 4) for own in sequences]
    pairs = [plan.pairs.max() * 4 / plan.pairs.sum() for plan in plans]
    tiles = [plan.tiles(16).max() * 256 * 4 / plan.pairs.sum() for plan in plans]
    assert figures["pair_imbalance_per_document"] == pytest.approx(np.mean(pairs))
    assert figures["pair_imbalance_per_document_max"] == pytest.approx(max(pairs))
    assert figures["tile_imbalance_per_document"] == pytest.approx(np.mean(tiles))
    assert figures["tile_imbalance_per_document_max"] == pytest.approx(max(tiles))
    fragments = np.mean([len(plan.document) / 4 for plan in plans])
    assert figures["fragments_per_rank_per_document"] == pytest.approx(fragments)
    chosen = [shard(own, 4, latency=TileLatency(tile=16)).method for own in sequences]
    for method in METHODS:
        assert figures[f"chosen_{method.replace('-', '_')}"] == chosen.count(method)


def test_padding_is_measured() -> None:
    assert run_sharding([np.array([16])], 4).as_dict()["padding"] == 0
    # Ranks of 5, 4, 4 and 4 tokens.
    uneven = run_sharding([np.array([17])], 4).as_dict()
    assert uneven["padding"] == pytest.approx(3 / 20)
    assert (uneven["tokens_per_rank_min"], uneven["tokens_per_rank_max"]) == (4, 5)


def test_adaptive_is_the_best_of_what_it_chooses_from() -> None:
    sequences = draw_sequences("pretrain-128k", context=CONTEXT, sequences=12)
    every = run_sharding(sequences, 8)
    least = np.min([every.figures[name].tile_imbalance for name in METHODS], axis=0)
    assert every.figures["adaptive"].tile_imbalance.tolist() == least.tolist()
    assert every.oracle.tolist() == least.tolist()
    assert every.figures["adaptive"].tile_imbalance.mean() <= 1.06
    two = run_sharding(sequences, 8, methods=("per-sequence", "per-document"))
    least = np.min([two.figures[name].tile_imbalance for name in METHODS[:2]], axis=0)
    assert two.figures["adaptive"].tile_imbalance.tolist() == least.tolist()
    assert two.chosen["hybrid"] == 0
    assert sum(two.chosen.values()) == 12


def test_another_latency_decides_and_the_oracle_goes_on_counting_tiles() -> None:
    sequences = draw_sequences("pretrain-128k", context=16_384, sequences=12)

    def calls(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.ones(len(queries))

    result = run_sharding(sequences, 4, latency=calls)
    adaptive = result.figures["adaptive"]
    fewest = np.min([result.figures[name].latency for name in METHODS], axis=0)
    assert adaptive.latency.tolist() == fewest.tolist()
    by_tiles = [
        shard(own, 4, methods=("hybrid",)).tiles().max() * 128**2 * 4 / (own * (own + 1) // 2).sum()
        for own in sequences
    ]
    assert (result.oracle <= by_tiles).all()
    assert (result.oracle < adaptive.tile_imbalance).any()
