"""Raw rows as a user's dataset returns them: images, sounds and messages, made from a number."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

WIDTHS, HEIGHTS = (40, 72, 56, 120, 33), (56, 40, 88, 48)
SAMPLING_RATE = 16000


def image(number: int) -> Image.Image:
    """A smooth picture with some noise. Twenty numbers in a row have twenty sizes."""
    width, height = WIDTHS[number % len(WIDTHS)], HEIGHTS[number % len(HEIGHTS)]
    random = np.random.default_rng(number)
    across, down = np.linspace(0, 3, width), np.linspace(0, 3, height)[:, None]
    waves = [np.sin(across * (1 + c) + down + number) for c in range(3)]
    pixels = 128 + 90 * np.stack(waves, -1) + random.normal(0, 12, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def sound(number: int) -> np.ndarray:
    """A mono tone of 0.1 to 0.9 seconds, float32 [samples], that rises."""
    samples = SAMPLING_RATE // 10 * (1 + 4 * number % 9)
    time = np.arange(samples) / SAMPLING_RATE
    return np.sin(2 * np.pi * (200 + 90 * number + 300 * time) * time).astype(np.float32)


def frames(number: int, count: int = 4) -> np.ndarray:
    """A video, uint8 [frames, height, width, 3], of the size of image `number`."""
    size = image(number).size
    return np.stack([np.asarray(image(number + 20 * i).resize(size)) for i in range(count)])


def messages(number: int, media: list[str]) -> list[dict[str, Any]]:
    """One question with its media before the text, and one answer; their lengths differ."""
    question = [{"type": kind} for kind in media]
    question.append({"type": "text", "text": "and so" * (number % 4) + f" what is {number}?"})
    answer = [{"type": "text", "text": f"{number} is " + "very " * (number * 5 % 7) + "good"}]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def image_row(number: int, images: int | None = None) -> dict[str, Any]:
    """A row with `images` pictures, by default none, one or two by turns."""
    count = number % 3 if images is None else images
    pictures = [image(7 * number + i) for i in range(count)]
    return {"id": number, "images": pictures, "messages": messages(number, ["image"] * count)}
