"""Qwen2-Audio and Whisper: recordings as windows of mel bands of one fixed length.

What Qwen2-Audio's processor returns for one sample with k recordings and T tokens:

    input_ids, attention_mask   [1, T] int64
    input_features              [k, mel bands, frames] float32, always as long as the longest window
    feature_attention_mask      [k, frames] int32, 1 for frames of the recording

The last two are joined along their first dimension, and absent without recordings.

What Whisper's feature extractor and tokenizer give for a sample, which has exactly one recording:

    input_features              [1, mel bands, frames] float32
    labels                      [1, L] int64: the transcript, -100 behind it in a group

There are no ``input_ids`` and no ``attention_mask``: the model makes the decoder's input from the
labels. A group has one row per sample, its labels padded with -100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

from families import Family
from families.collate import ChatCollate
from families.media import SAMPLING_RATE, messages, sound
from families.tiny import (
    CHAT_ANSWER,
    WIDTH,
    byte_tokenizer,
    chat_template,
    seeded,
    text_sizes,
)

BANDS, SECONDS = 16, 1
FRAMES = 100 * SECONDS
ENCODER = {
    "num_mel_bins": BANDS,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "d_model": WIDTH,
    "max_source_positions": FRAMES // 2,
}


def audio_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>", "<|transcript|>")


def features() -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=BANDS, chunk_length=SECONDS)


def audio_row(number: int, images: int | None = None) -> dict[str, Any]:
    """A row with `images` recordings, by default none, one or two by turns."""
    count = number % 3 if images is None else images
    sounds = [sound(number + i) for i in range(count)]
    return {"id": number, "audio": sounds, "messages": messages(number, ["audio"] * count)}


def flat_audio(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All recordings of the group in one list."""
    sounds = [sound for row in rows for sound in row["audio"]]
    return {"audio": sounds, "sampling_rate": SAMPLING_RATE} if sounds else {}


def qwen2_audio_processor() -> Qwen2AudioProcessor:
    template = chat_template(audio="<|audio_bos|><|AUDIO|><|audio_eos|>")
    return Qwen2AudioProcessor(features(), audio_tokenizer(), chat_template=template)


def qwen2_audio_model(seed: int) -> PreTrainedModel:
    tokenizer = audio_tokenizer()
    config = Qwen2AudioConfig(
        audio_config=ENCODER,
        text_config=text_sizes(tokenizer, model_type="qwen2"),
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    return seeded(lambda: Qwen2AudioForConditionalGeneration(config), seed)


def whisper_processor() -> WhisperProcessor:
    return WhisperProcessor(features(), audio_tokenizer())


def whisper_model(seed: int) -> PreTrainedModel:
    tokenizer = audio_tokenizer()
    config = WhisperConfig(
        **ENCODER,
        vocab_size=len(tokenizer),
        decoder_layers=2,
        decoder_attention_heads=2,
        decoder_ffn_dim=48,
        max_target_positions=64,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|transcript|>"),
        use_cache=False,
    )
    return seeded(lambda: WhisperForConditionalGeneration(config), seed)


def transcript_row(number: int, images: int = 1) -> dict[str, Any]:
    """A row with one recording and its transcript."""
    if images != 1:
        raise ValueError(f"images={images}: a row of Whisper has one recording")
    return {"id": number, "audio": sound(number), "text": "la " * (1 + 5 * number % 7) + "di"}


class TranscriptCollate:
    """Rows -> features and labels, as the examples of transformers make them."""

    def __init__(self) -> None:
        self.processor = whisper_processor()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        sounds = [row["audio"] for row in rows]
        batch = self.processor(sounds, sampling_rate=SAMPLING_RATE, return_tensors="pt")
        text = self.processor.tokenizer(
            [row["text"] + "<|im_end|>" for row in rows], padding=True, return_tensors="pt"
        )
        labels = text["input_ids"].masked_fill(text["attention_mask"] == 0, -100)
        return {"input_features": batch["input_features"], "labels": labels}


QWEN2_AUDIO = Family(
    name="Qwen2-Audio",
    processor=qwen2_audio_processor,
    model=qwen2_audio_model,
    row=audio_row,
    collate=ChatCollate(qwen2_audio_processor, CHAT_ANSWER, flat_audio),
    tower="model.audio_tower.",
)

WHISPER = Family(
    name="Whisper",
    processor=whisper_processor,
    model=whisper_model,
    row=transcript_row,
    collate=TranscriptCollate(),
    tower="model.encoder.",
    pad_token_id=None,
    always_media=True,
)
