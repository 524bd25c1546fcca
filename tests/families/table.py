"""`FAMILIES`: all of them by name."""

from families.audio import QWEN2_AUDIO, WHISPER
from families.family import Family
from families.gemma import GEMMA3
from families.idefics import IDEFICS3, SMOLVLM
from families.internvl import INTERNVL
from families.llava import LLAVA_NEXT, LLAVA_ONEVISION
from families.qwen_video import QWEN2_5_VL_VIDEO
from families.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL

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
