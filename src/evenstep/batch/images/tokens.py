"""Whether a sample has as many image tokens as its images make.

Where a sequence is cut behind the processor, or placeholders are added to it, the two differ, and
the model would fail on the whole batch, or put features where they do not belong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from evenstep.batch.images.stand_in import TakenCall
from evenstep.errors import SampleError


class ImageTokensError(SampleError):
    """A sample's image tokens do not match its images."""


def check_image_tokens(sample: Mapping[str, Any], call: TakenCall, processor: Any) -> None:
    """
    Args:
        call: the call of the image processor that the sample's pixels are from.

    Raises:
        ImageTokensError: see the module docstring.
    """
    replace = getattr(processor, "replace_image_token", None)
    token = getattr(processor, "image_token_id", None)
    ids = sample.get("input_ids")
    if replace is None or token is None or not isinstance(ids, torch.Tensor):
        return
    text = processor.tokenizer.convert_ids_to_tokens(token)
    wanted = sum(replace(call.result, image_idx=i).count(text) for i in range(len(call.flat)))
    has = int((ids == token).sum())
    if has != wanted:
        why = "it was cut" if has < wanted else "it has more placeholders than images"
        raise ImageTokensError(
            f"input_ids has {has:,} image tokens, and its {len(call.flat)} images make {wanted:,}: "
            f"{why}; raise max_length in collate_fn, make the images smaller, or leave the sample "
            "out of the dataset"
        )
