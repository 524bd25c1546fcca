"""What groups of sources need as weights move, and where limits are too low."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from heavy_tails import MIB, model_of, profiles_of

from evenstep.strategy.loaders import LoadModel, ScalingLimits, group_needs
from evenstep.strategy.loaders.load_model import Piece

QUICK, SLOW = 0.0002, 0.03
STEP = {"samples": 256, "memory": 8192 * MIB, "step_seconds": 0.5, "workers": 4}


def text_and_images() -> list:
    text, images = (
        profiles_of(1, 0, prepare_seconds=s, prepare_high=s, send_seconds=0.0)[0]
        for s in (QUICK, SLOW)
    )
    return [text, replace(images, source="images")]


def moving(shares: np.ndarray) -> LoadModel:
    """256 samples a step, of which that share are images."""
    return model_of(text_and_images(), np.stack([1 - shares, shares], axis=1), **STEP)


GROUPS = [[Piece(0, 1)], [Piece(1, 1)]]


def test_enough_is_enough_and_too_little_is_said() -> None:
    limits = ScalingLimits(most_loaders=3)
    needs = group_needs(moving(np.array([0.0, 0.05, 0.1, 0.3, 0.7])), GROUPS, limits)
    # 256 x 0.03 s x share, of which a process takes 0.4 s: 0, 1, 2, 6 and 14 of them, at most 4 a
    # loader; the first it does by itself.
    assert needs.loaders[:, 1].tolist() == [1, 1, 1, 2, 3]
    assert needs.workers[:, 1].tolist() == [0, 0, 2, 3, 4]
    assert needs.short[:, 1].tolist() == [False] * 4 + [True]
