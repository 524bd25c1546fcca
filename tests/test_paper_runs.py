"""What the book's runs are made of does what its pages say."""

from __future__ import annotations

import numpy as np

from benchmarks.lib.corpus import Tokens
from benchmarks.papers.overlord.constructors import LOADERS, SHARED, measured
from benchmarks.papers.wlb.packing_run import ArrivingDocuments, run_fixed_length
from benchmarks.papers.wlb.packing_windows import COST, samples_of
from benchmarks.papers.wlb.positions import CONTEXT, dropped


def test_training_sees_every_token_that_a_packer_has_placed_once() -> None:
    lengths = [700, 90, 1500, 30, 5000, 200, 640, 32] * 8  # some are cut, by windows and by packing
    tokens = Tokens.of([list(range(n)) for n in lengths])
    drawn = np.random.default_rng(0).permutation(len(lengths))
    arrivals = ArrivingDocuments.of(tokens.lengths[drawn], context=2048, micro_batches=4)
    trained = run_fixed_length(arrivals, 2, cost=COST, end="carry")
    samples, steps = samples_of(tokens, drawn, arrivals, trained)
    whole = int(arrivals.complete) * 4 * 2048
    assert samples.flat.tolist() != sorted(samples.flat.tolist())
    stream = np.concatenate([np.arange(n) for n in tokens.lengths[drawn]])[:whole]
    assert np.array_equal(np.sort(samples.flat), np.sort(stream))
    for row in range(len(samples)):  # a sample is a run of one document
        own = samples[row]["input_ids"].numpy()
        assert np.array_equal(own, own[0] + np.arange(len(own)))
    for number, step in enumerate(steps[: arrivals.complete]):
        assert (trained.step[step] == number).all()
    assert sum(map(len, steps)) == int((samples.lengths > 1).sum())


def test_a_document_without_room_is_dropped_where_the_window_ends() -> None:
    assert dropped(np.array([CONTEXT - 10, 30, 5])).tolist() == [CONTEXT - 10, 10, 5]
    assert dropped(np.array([CONTEXT, 7])).tolist() == [CONTEXT, 7]


def test_without_constructors_every_client_asks_the_planner_and_the_loaders() -> None:
    clients = 2 * SHARED
    shared = measured(clients, 0, with_constructors=True)
    alone = measured(clients, 0, with_constructors=False)
    assert (shared.planner.messages, alone.planner.messages) == (2, clients)
    asked = [sum(load.messages for load in found.loaders) for found in (shared, alone)]
    assert 2 <= asked[0] <= 2 * LOADERS
    assert asked[1] == SHARED * asked[0]
    assert sum(load.messages for load in shared.constructors) == clients
    assert alone.planner.sent > 8 * shared.planner.sent
