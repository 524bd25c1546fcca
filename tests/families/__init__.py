"""Model families of transformers that take images, videos or sound, small and without a network.

Each is built of the real model, tokenizer, image processor and processor classes, with random
weights, and has rows and a collate function such as users write. `FAMILIES` has them by name; the
module of each says what its processor returns and how the fields of a group are joined.

    table.py        `FAMILIES` and `IMAGE_FAMILIES`
    family.py       what a family has
    tiny.py         sizes and weights of the models
    text.py         tokenizers and chat templates
    media.py        images, sounds, videos and rows made from a number
    collate.py      rows -> a batch with labels, as users write it
    video.py        processors with a video processor, where torchvision is not installed
    qwen_vl.py      Qwen2-VL, Qwen2.5-VL, Qwen3-VL
    qwen_video.py   Qwen2.5-VL with videos
    llava.py        LLaVA-NeXT, LLaVA-OneVision
    idefics.py      Idefics3, SmolVLM
    gemma.py        Gemma 3
    internvl.py     InternVL
    audio.py        Qwen2-Audio, Whisper

Tests need ``pytest.importorskip`` for transformers and PIL before they import this package.
A test that imports the table is skipped where there is no transformers 5.
"""

from __future__ import annotations

from typing import Any

import pytest

from families.family import Family

__all__ = ["FAMILIES", "IMAGE_FAMILIES", "Family"]


def __getattr__(name: str) -> Any:
    if name not in ("FAMILIES", "IMAGE_FAMILIES"):
        raise AttributeError(name)
    pytest.importorskip("transformers", minversion="5", reason="the families are of transformers 5")
    from families import table

    return getattr(table, name)
