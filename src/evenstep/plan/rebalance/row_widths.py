"""How wide rows are whose prompts are padded on the left, and answers on the right.

A row is then as wide as the longest prompt and the longest answer of its micro-batch together,
which may be of two sequences. `padded_apart` gives each sequence the width of a run that begins
with it, and takes the place of lengths where runs are cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError


def padded_apart(lengths: Int64Array, prompts: np.ndarray[Any, Any]) -> Int64Array:
    """[sequences] how wide rows are, at most, in a micro-batch of a sequence and others after it,
    in the order of these widths, the widest first.

    Args:
        lengths: [sequences] tokens of each, of prompt and answer.
        prompts: [sequences] tokens of each one's prompt.

    Raises:
        ConfigurationError: there is not one prompt for each sequence, or one is longer than it.
    """
    if prompts.shape != lengths.shape or prompts.dtype.kind not in "iu":
        raise ConfigurationError(
            f"prompts of shape {prompts.shape} and type {prompts.dtype} must be an integer for "
            f"each of {len(lengths)} sequences"
        )
    if ((prompts < 0) | (prompts > lengths)).any():
        number = int(((prompts < 0) | (prompts > lengths)).argmax())
        raise ConfigurationError(
            f"sequence {number} has {lengths[number]} tokens and a prompt of {prompts[number]}; "
            "count the tokens of prompt and answer in lengths"
        )
    ascending = lengths.argsort(kind="stable")
    prompt, answer = prompts[ascending], (lengths - prompts)[ascending]
    widths = np.empty_like(lengths)
    widths[ascending] = np.maximum.accumulate(prompt) + np.maximum.accumulate(answer)
    return widths
