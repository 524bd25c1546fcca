from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.strategy.mesh import AXES, ClientPlaceTree
from evenstep.strategy.mesh.text_tree import ranges

meshes = st.tuples(*[st.integers(1, 3)] * 4).map(
    lambda sizes: ClientPlaceTree.of(dict(zip(AXES, sizes)))
)


def test_the_tree_shows_axes_of_more_than_one_rank_and_who_fetches_nothing() -> None:
    tree = ClientPlaceTree.of({"PP": 1, "DP": 2, "CP": 1, "TP": 2})
    assert tree.lines(["TP"]) == [
        "4 clients",
        "├─ DP=0",
        "│  ├─ TP=0  rank 0",
        "│  └─ TP=1  rank 1, fetches nothing",
        "└─ DP=1",
        "   ├─ TP=0  rank 2",
        "   └─ TP=1  rank 3, fetches nothing",
    ]


@given(meshes, st.lists(st.sampled_from(AXES), unique=True))
def test_every_client_has_a_line_that_says_whether_it_fetches(
    tree: ClientPlaceTree, broadcast_at: list[str]
) -> None:
    leaves = [line.split("rank ")[1] for line in tree.lines(broadcast_at) if "rank " in line]
    delivery = tree.delivery("DP", broadcast_at)
    fetching = set(delivery.fetching.tolist())
    ranks = tree.ranks.ravel().tolist()
    assert leaves == [f"{r}" if r in fetching else f"{r}, fetches nothing" for r in ranks]


def test_a_long_row_is_cut_and_says_so() -> None:
    text = str(ClientPlaceTree.of({"DP": 4096}))
    assert len(text.splitlines()) == 10
    assert text.endswith("└─ 4,088 more, ranks 8-4095")
    assert len(ClientPlaceTree.of({"DP": 4096}).lines()) == 4097


def test_ranks_in_a_row_are_told_as_ranges() -> None:
    assert ranges(np.array([7, 1, 2, 3, 9])) == "1-3, 7, 9"
    assert ranges(np.arange(0, 40, 2)).endswith("14, and 12 more ranges")
