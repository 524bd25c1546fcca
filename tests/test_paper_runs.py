"""What the book's runs are made of does what its pages say."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.wlb.positions import CONTEXT, dropped


def test_a_document_without_room_is_dropped_where_the_window_ends() -> None:
    assert dropped(np.array([CONTEXT - 10, 30, 5])).tolist() == [CONTEXT - 10, 10, 5]
    assert dropped(np.array([CONTEXT, 7])).tolist() == [CONTEXT, 7]
