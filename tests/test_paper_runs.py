"""What the book's runs are made of does what its pages say."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.overlord.constructors import LOADERS, SHARED, measured
from benchmarks.papers.wlb.positions import CONTEXT, dropped


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
