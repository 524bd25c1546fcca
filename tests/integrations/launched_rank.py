"""The environment of a rank, as a launcher sets it."""

from __future__ import annotations

import os

from ranks import Rank


def as_rank(rank: Rank) -> None:
    os.environ.update(
        RANK=str(rank.rank),
        LOCAL_RANK=str(rank.rank),
        WORLD_SIZE=str(rank.world_size),
        LOCAL_WORLD_SIZE=str(rank.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # the group exists already
    )
