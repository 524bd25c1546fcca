"""Rows to train on without a download: questions about crops of photographs.

Needs pip install scikit-image pillow. Sizes of the crops are as uneven as those of pictures on the
web.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import skimage.data
from PIL import Image

SHOWN = {"astronaut": "an astronaut", "chelsea": "a cat", "coffee": "coffee", "rocket": "a rocket"}
"""Functions of `skimage.data`, and what they show."""


class Crops:
    """Rows with ``images`` and ``messages``; a row is drawn from its number."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(index)
        names = random.choice(list(SHOWN), random.geometric(0.7)).tolist()
        question = [{"type": "image"}] * len(names) + [{"type": "text", "text": "What is this?"}]
        answer = [{"type": "text", "text": "; ".join(SHOWN[name] for name in names)}]
        return {
            "images": [crop(name, random) for name in names],
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ],
        }


def crop(name: str, random: np.random.Generator) -> Image.Image:
    pixels = getattr(skimage.data, name)()
    side, shape = 72 * np.exp(0.7 * random.normal()), np.exp(0.3 * random.normal())
    sides = np.array([side / shape, side * shape]).clip(24)
    height, width = np.minimum(sides.astype(int), pixels.shape[:2])
    top, left = random.integers([pixels.shape[0] - height + 1, pixels.shape[1] - width + 1])
    return Image.fromarray(pixels[top : top + height, left : left + width])
