"""Raw rows: crops of photographs that scikit-image ships, questions about them, and answers.

The sizes of crops are as uneven as those of pictures on the web: the logarithms of their area and
of the proportion of their sides are normal. Half the answers are a name, the others describe. A
row is drawn from its number, so nothing is stored.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

PHOTOGRAPHS = {
    "astronaut": "an astronaut",
    "brick": "bricks",
    "camera": "a man with a camera",
    "chelsea": "a cat",
    "coffee": "a cup of coffee",
    "coins": "old coins",
    "grass": "grass",
    "gravel": "gravel",
    "hubble_deep_field": "galaxies",
    "immunohistochemistry": "tissue",
    "moon": "the moon",
    "retina": "a retina",
    "rocket": "a rocket",
    "stereo_motorcycle": "a motorcycle",
}
"""Functions of `skimage.data`, and what they show."""
_MEDIAN_SIDE, _LEAST_SIDE = 72, 24  # pixels
_AREA_SPREAD, _PROPORTION_SPREAD = 1.4, 0.3
_MORE_CROPS = 0.3  # probability of one more crop


@cache
def photograph(function: str) -> npt.NDArray[np.uint8]:
    """[rows, columns, 3] pixels, read once in each process.

    Raises:
        ImportError: scikit-image is not installed.
    """
    try:
        from skimage import data
    except ImportError as error:
        raise ImportError(
            "the demo needs scikit-image: pip install 'evenstep[demo-vision]'"
        ) from error
    pixels = getattr(data, function)()
    pixels = np.asarray(pixels[0] if isinstance(pixels, tuple) else pixels)
    return pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)


class Crops(Dataset[dict[str, Any]]):
    """Rows with ``images`` and ``messages``, as a user's dataset has them.

    Args:
        numbers: of the rows; the same number is the same row.
    """

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = np.random.default_rng(self.numbers[index])
        # At least one: torch's batches without any would fail under DDP.
        crops = [_crop(random) for _ in range(random.geometric(1 - _MORE_CROPS))]
        described = random.random() < 0.5
        question = "Describe." if described else "What is this?"
        answer = "; ".join(words if described else name for _, name, words in crops)
        return {
            "images": [image for image, _, _ in crops],
            "messages": [
                {
                    "role": "user",
                    "content": [*({"type": "image"} for _ in crops), _text(question)],
                },
                {"role": "assistant", "content": [_text(answer)]},
            ],
        }


def _crop(random: np.random.Generator) -> tuple[Any, str, str]:
    """An image, what it shows, and a description."""
    from PIL import Image

    function = str(random.choice(list(PHOTOGRAPHS)))
    name, pixels = PHOTOGRAPHS[function], photograph(function)
    side = _MEDIAN_SIDE * np.exp(_AREA_SPREAD / 2 * random.standard_normal())
    proportion = np.exp(_PROPORTION_SPREAD * random.standard_normal())
    sides = np.array([side / proportion, side * proportion]).clip(_LEAST_SIDE)
    height, width = np.minimum(sides.astype(int), pixels.shape[:2]).tolist()
    top, left = (
        int(random.integers(whole - part + 1)) for whole, part in zip(pixels.shape, (height, width))
    )
    crop = pixels[top : top + height, left : left + width]
    light = "dark" if crop.mean() < 85 else "bright" if crop.mean() > 170 else "grey"
    middle = (top + height / 2) / pixels.shape[0]
    place = "above" if middle < 1 / 3 else "below" if middle > 2 / 3 else "in the middle"
    shape = "wide" if width > height else "high"
    return Image.fromarray(crop), name, f"{name}, {light} and {shape}, from {place}"


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
