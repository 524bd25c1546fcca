"""torchdata's StatefulDataLoader: torch's, with the state of an epoch."""

from __future__ import annotations

from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.peers.adapters import torch as plain

STATE = "state_dict", "load_state_dict"


def padded(work: plain.Work) -> Any:
    return plain.padded(work, StatefulDataLoader)


def images(work: plain.Work) -> Any:
    return plain.images(work, StatefulDataLoader)


def mixture(work: plain.Work) -> Any:
    return plain.mixture(work, StatefulDataLoader)
