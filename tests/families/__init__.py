"""Model families of transformers that take images, videos or sound, small and without a network.

Each is built of the real model, tokenizer, image processor and processor classes, with random
weights, and has rows and a collate function such as users write. `FAMILIES` has them by name; the
module of each says what its processor returns and how the fields of a group are joined.

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
"""

from families.audio import QWEN2_AUDIO, WHISPER
from families.family import Family
from families.gemma import GEMMA3
from families.idefics import IDEFICS3, SMOLVLM
from families.internvl import INTERNVL
from families.llava import LLAVA_NEXT, LLAVA_ONEVISION
from families.qwen_video import QWEN2_5_VL_VIDEO
from families.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL

__all__ = ["FAMILIES", "IMAGE_FAMILIES", "Family"]

IMAGE_FAMILIES = [
    "Qwen2-VL",
    "Qwen2.5-VL",
    "Qwen3-VL",
    "LLaVA-NeXT",
    "LLaVA-OneVision",
    "Idefics3",
    "SmolVLM",
    "Gemma 3",
    "InternVL",
]
"""Names of those that take images."""

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        QWEN2_VL,
        QWEN2_5_VL,
        QWEN3_VL,
        QWEN2_5_VL_VIDEO,
        LLAVA_NEXT,
        LLAVA_ONEVISION,
        IDEFICS3,
        SMOLVLM,
        GEMMA3,
        INTERNVL,
        QWEN2_AUDIO,
        WHISPER,
    )
}
