"""Measures a sample before it is collated: its length, supervised tokens and media.

Policies see only these five integers of a sample, and `loss_scale` is exact only if the second is
the number of tokens that the loss of the collated batch averages over. `Measure` runs in the worker
processes on every sample, so the defaults take a few microseconds and copy nothing.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.count_media import (
    MediaCounts,
    describe,
    field_of,
    media_of,
    media_of_patches,
)
from evenstep.batch.labels import MAPPINGS, as_array, count_supervised, is_tensor, labels_of
from evenstep.batch.trim import MASK, Trim
from evenstep.errors import ConfigurationError, SampleError, described

_LENGTH_LIMIT = 2**31  # what the planner's sort keys hold
_NUMBERS = (int, float, np.number)
_LENGTH_REMEDY = (
    "pass length_fn=, a function from a sample to its number of tokens; or, where collate_fn makes "
    "the tokens, PreparingCollator(collate_fn=...)"
)


def length_of(sample: Any) -> int:
    """Tokens of a sample: the default `length_fn`.

    Understands mappings with ``input_ids``; objects with an ``input_ids`` attribute; a bare 1-D
    tensor, array or list of numbers; and tuples or lists whose first element is one of these. Where
    a mapping has ``input_features`` instead, as speech models take them, its tokens are its labels.

    Raises:
        SampleError: the tokens are not found, or are not one-dimensional.
    """
    tokens = tokens_of(sample)
    length = _sequence_length(tokens)
    if length is not None:
        return length
    if tokens is not None:
        raise SampleError(
            f"its tokens are {describe(tokens)}, not one sequence of numbers; return "
            "one-dimensional input_ids from the dataset (a tokenizer asked for tensors adds a "
            f"leading dimension: take [0]), or {_LENGTH_REMEDY}"
        )
    if isinstance(sample, MAPPINGS):
        spoken = _sequence_length(sample.get("labels")) if "input_features" in sample else None
        if spoken is not None:
            return spoken
        raise SampleError(f"no 'input_ids' among its fields {list(sample)}; {_LENGTH_REMEDY}")
    raise SampleError(f"it is {describe(sample)} without 'input_ids'; {_LENGTH_REMEDY}")


def supervised_of(sample: Any, length: int) -> int:
    """Supervised tokens of a sample, which contribute to the loss: the default `supervised_fn`.

    - With labels (``labels``, ``label`` or ``label_ids``): those that are not -100. One fewer if
      they are an aligned copy of the tokens whose first label is not -100, because a model that
      takes such labels shifts them inside and never predicts the first. A scalar counts 1.
    - Without labels, where only tokens are known (``input_ids`` or a bare sequence): one fewer than
      `length`, since each token is predicted from those before it; with an ``attention_mask``,
      those behind the first whose mask is not 0.
    - Otherwise `length`, as for a tuple, whose other elements may be labels of any kind.

    Raises:
        SampleError: the labels are neither numbers nor text.
    """
    labels = labels_of(sample)
    if labels is None:
        return supervised_without_labels(sample, length)
    tokens = tokens_of(sample)
    if _sequence_length(tokens) is None:
        tokens = None
    try:
        return count_supervised(labels, tokens)
    except (TypeError, ValueError) as error:
        raise SampleError(
            f"its labels are {describe(labels)} ({error}); pass "
            "length_fn=evenstep.SampleCounts(supervised=...), a function from a sample to the "
            "number of its supervised tokens"
        ) from error


def supervised_without_labels(sample: Any, length: int) -> int:
    """`supervised_of` a sample that has no labels."""
    tokens = tokens_of(sample)
    if _sequence_length(tokens) is None:
        return length
    unnamed = isinstance(sample, (tuple, list)) and tokens is not sample
    if unnamed and not hasattr(sample, "input_ids"):
        return length
    mask = field_of(sample, MASK)
    if mask is None or _sequence_length(mask) != length:
        return max(length - 1, 0)
    if isinstance(mask, list) and mask.count(1) == length:  # several times cheaper than an array
        return length - 1
    return int(np.count_nonzero(as_array(mask)[1:]))


def digests_of(samples: Sequence[Any]) -> Int64Array:
    """[samples] checksum of the tokens and labels of each; 0 for a sample that has neither. Ranks
    that must prepare the same samples compare them by it."""
    return np.array([_digest(sample) for sample in samples], np.int64)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measures samples. Picklable as long as the functions are."""

    length_fn: Callable[[Any], int] | None = None
    """Sample -> tokens; None is `length_of`."""
    supervised_fn: Callable[[Any], int] | None = None
    """Sample -> supervised tokens, at most its length; None is `supervised_of`."""
    patches_fn: Callable[[Any], int | Sequence[int]] | None = None
    """Sample -> vision patches, or those of each of its images; None is `media_of`."""
    count_patches: bool = False
    """False reports no media and does not call `patches_fn`."""
    needs_lengths: bool = True
    """False takes samples without tokens, too, unless there is a `length_fn`. Their length is the
    number of their supervised labels, or 1 where they have none that can be counted."""
    trim: Trim | None = None
    """Cuts off the padding that samples come with."""

    def __post_init__(self) -> None:
        for name in ("length_fn", "supervised_fn", "patches_fn"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigurationError(
                    f"{name}={function!r} must be a function from a sample to an integer, or None"
                )

    def __call__(self, samples: list[Any], names: Sequence[str]) -> Int64Array:
        """Length, supervised tokens, patches, images and patch pairs of each sample.

        Args:
            samples: [n] what the dataset returned; in this list, those that `trim` cuts are
                replaced.
            names: [n] the name of each sample in an error, such as "sample 17".

        Returns:
            [n, 5] int64.

        Raises:
            SampleError: a function failed or did not return an integer from 0 to 2**31 - 1, a
                length is 0, or more tokens are supervised than there are.
        """
        length_fn = self.length_fn or length_of
        may_lack_tokens = not self.needs_lengths and self.length_fn is None
        flat: list[int] = []
        media: list[MediaCounts] = []
        for place, name in enumerate(names):
            if self.trim is not None:
                samples[place] = _called("trim", self.trim, name, samples[place])
            sample = samples[place]
            lacks_tokens = may_lack_tokens and not _has_tokens(sample)
            length = 1 if lacks_tokens else _evaluate("length_fn", length_fn, name, sample)
            if length == 0:
                raise SampleError(
                    f"{name} has length 0, and an empty sample cannot be trained on; filter it in "
                    "the dataset"
                )
            if self.supervised_fn is not None:
                supervised = _evaluate("supervised_fn", self.supervised_fn, name, sample)
            elif lacks_tokens:
                supervised = _supervised_labels(sample)
            else:
                supervised = _evaluate("supervised_fn", supervised_of, name, sample, length)
            if lacks_tokens:
                length = max(length, supervised)
            if supervised > length:
                raise SampleError(
                    f"{name} has {supervised:,} supervised tokens but a length of {length:,}; let "
                    "length_fn= count every supervised token (an encoder-decoder's labels too), or "
                    "correct SampleCounts(supervised=...)"
                )
            flat += (length, supervised)
            if self.count_patches:
                media.append(self._media(name, sample))
        columns = np.zeros((len(flat) // 2, 2 + len(MediaCounts._fields)), np.int64)
        columns[:, :2] = np.array(flat, np.int64).reshape(-1, 2)
        if media:
            columns[:, 2:] = media
        return columns

    def _media(self, name: str, sample: Any) -> MediaCounts:
        if self.patches_fn is None:
            return MediaCounts(*_called("patches_fn", media_of, name, sample))
        patches = _called("patches_fn", self.patches_fn, name, sample)
        each = patches if isinstance(patches, (list, tuple, np.ndarray)) else [patches]
        for one in each:
            _whole("patches_fn", self.patches_fn, name, one)
        return media_of_patches(patches, sample)


def _evaluate(role: str, function: Callable[..., Any], name: str, *arguments: Any) -> int:
    return _whole(role, function, name, _called(role, function, name, *arguments))


def _called(role: str, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except SampleError as error:
        raise SampleError(f"{name}: {error}") from error
    except Exception as error:
        raise SampleError(f"{name}: {_call(role, function)} raised {described(error)}") from error


def _whole(role: str, function: Callable[..., Any], name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        count = -1
    if isinstance(value, bool) or not 0 <= count < _LENGTH_LIMIT:
        raise SampleError(
            f"{name}: {_call(role, function)} returned {value!r}; it must return an integer from 0 "
            f"to {_LENGTH_LIMIT - 1:,}"
        )
    return count


def _digest(sample: Any) -> int:
    digest = 0
    for value in (tokens_of(sample), labels_of(sample)):
        if value is not None:
            digest = zlib.crc32(np.ascontiguousarray(as_array(value)).tobytes(), digest)
    return digest


def _call(role: str, function: Callable[..., Any]) -> str:
    return f"{role} ({getattr(function, '__qualname__', repr(function))})"


def tokens_of(sample: Any) -> Any | None:
    """The tokens of a sample, by key, by attribute or by position; None where there are none."""
    if isinstance(sample, MAPPINGS):
        return sample.get("input_ids")
    if isinstance(sample, np.ndarray) or is_tensor(sample):
        return sample
    if isinstance(sample, list) and (not sample or isinstance(sample[0], _NUMBERS)):
        return sample
    tokens = getattr(sample, "input_ids", None)
    if tokens is None and isinstance(sample, (tuple, list)) and sample:
        return sample[0]
    return tokens


def _has_tokens(sample: Any) -> bool:
    """Whether a sample names its tokens, or is or begins with a sequence of integers."""
    if field_of(sample, "input_ids") is not None:
        return True
    tokens: Any = tokens_of(sample)
    return bool(_sequence_length(tokens)) and as_array(tokens[:1]).dtype.kind in "iu"


def _supervised_labels(sample: Any) -> int:
    """Supervised labels of a sample without tokens; 1 where there are none to count."""
    labels = labels_of(sample)
    if labels is None:
        return 1
    try:
        return count_supervised(labels, None)
    except (TypeError, ValueError):
        return 1


def _sequence_length(value: Any) -> int | None:
    """None where `value` is not one sequence of numbers."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return value.shape[0] if value.ndim == 1 else None
    if isinstance(value, (list, tuple)) and (not value or isinstance(value[0], _NUMBERS)):
        return len(value)
    return None
