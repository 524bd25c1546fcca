"""Measures a sample before it is collated: its length, supervised tokens and media.

Policies see only these integers of a sample, and `loss_scale` is exact only if the second is the
number of tokens that the loss of the collated batch averages over. `Measure` runs in the worker
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
from evenstep.batch.count_media import MediaCounts, describe, media_of, media_of_patches
from evenstep.batch.labels import (
    MAPPINGS,
    Supervised,
    are_integers,
    as_array,
    count_labels,
    field_of,
    is_tensor,
    labels_of,
    numbers_of,
)
from evenstep.batch.trim import MASK, Trim
from evenstep.errors import ConfigurationError, SampleError, described
from evenstep.plan.label_reading import FIRST, READINGS, UNKNOWN, UNSHIFTED
from evenstep.plan.value_checks import check_one_of

_LENGTH_LIMIT = 2**31  # what the planner's sort keys hold
_NUMBERS = (int, float, np.number)
_NO_TOKENS = ("input_features", "input_values", "pixel_values")
"""Fields of samples whose labels belong to no tokens of theirs one by one."""
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
        _check_numbers(tokens)
        return length
    if tokens is not None:
        raise SampleError(
            f"its tokens are {describe(tokens)}, not one sequence of numbers; return such "
            f"input_ids (take [0] of what a tokenizer returns as tensors), or {_LENGTH_REMEDY}"
        )
    if isinstance(sample, MAPPINGS):
        spoken = _sequence_length(sample.get("labels")) if "input_features" in sample else None
        if spoken is not None:
            return spoken
        raise SampleError(f"no 'input_ids' among its fields {list(sample)}; {_LENGTH_REMEDY}")
    raise SampleError(f"it is {describe(sample)} without 'input_ids'; {_LENGTH_REMEDY}")


def supervised_of(sample: Any, length: int | None) -> Supervised:
    """Supervised tokens of a sample, which contribute to the loss: the default `supervised_fn`.

    - With labels (``labels``, ``label`` or ``label_ids``): those that are not -100. Where there is
      one integer for each token, it depends on the model whether the first counts: see
      `evenstep.plan.label_reading`. A scalar counts 1.
    - Without labels, where only tokens are known (``input_ids`` or a bare sequence): one fewer than
      there are, since each token is predicted from those before it; with an ``attention_mask``,
      those behind the first whose mask is not 0. An answer that is marked by ``start_positions``
      counts 1.
    - In a pair of tokens and numbers, these are the labels. In any other tuple each token counts.

    Args:
        length: tokens of the sample; None if it has none.

    Raises:
        SampleError: the labels are neither numbers nor text.
    """
    tokens = tokens_of(sample)
    if (width := _sequence_length(tokens)) is None:
        tokens, width = None, _width(sample, length)
    labels = labels_of(sample)
    if labels is None:
        return _without_labels(sample, tokens, length)
    try:
        found = count_labels(labels, width, tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        if length is None and not isinstance(error, ValueError):
            return Supervised(1)  # boxes, say: objects of which the sample has one
        raise SampleError(
            f"its labels are {describe(labels)} ({error}); pass "
            "length_fn=evenstep.SampleCounts(supervised=...), a function that counts them"
        ) from error
    if found.shows == FIRST and field_of(sample, "decoder_input_ids") is not None:
        return Supervised(found.causal, FIRST | UNSHIFTED)
    return found


def _width(sample: Any, length: int | None) -> int | None:
    """As many labels may belong one by one to the tokens of a sample that shows none."""
    embeddings = field_of(sample, "inputs_embeds")
    if embeddings is not None:
        return len(embeddings)
    return None if any(field_of(sample, name) is not None for name in _NO_TOKENS) else length


def _without_labels(sample: Any, tokens: Any | None, length: int | None) -> Supervised:
    if tokens is None or length is None:
        return Supervised(1 if length is None else length)
    if isinstance(sample, (tuple, list)) and tokens is sample[0]:
        return _of_tuple(sample, tokens, length)
    if field_of(sample, "start_positions") is not None:
        return Supervised(1)
    mask = field_of(sample, MASK)
    if mask is None or _sequence_length(mask) != length:
        return Supervised(max(length - 1, 0))
    if isinstance(mask, list) and mask.count(1) == length:  # several times cheaper than an array
        return Supervised(length - 1)
    return Supervised(int(np.count_nonzero(as_array(mask)[1:])))


def _of_tuple(sample: Sequence[Any], tokens: Any, length: int) -> Supervised:
    if len(sample) != 2 or isinstance(sample[1], str):
        return Supervised(length)
    try:
        return count_labels(sample[1], len(tokens), tokens)
    except (TypeError, ValueError, RuntimeError):  # no numbers
        return Supervised(length)


def digests_of(samples: Sequence[Any]) -> Int64Array:
    """[samples] checksum of the tokens and labels of each; 0 for a sample that has neither. Ranks
    that must prepare the same samples compare them by it."""
    return np.array([_digest(sample) for sample in samples], np.int64)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measures samples. Picklable as long as the functions are."""

    length_fn: Callable[[Any], int] | None = None
    """Sample -> tokens; None is `length_of`."""
    supervised_fn: Callable[[Any], int | Supervised] | None = None
    """Sample -> supervised tokens; None is `supervised_of`."""
    patches_fn: Callable[[Any], int | Sequence[int]] | None = None
    """Sample -> vision patches, or those of each of its images; None is `media_of`."""
    count_patches: bool = False
    """False reports no media and does not call `patches_fn`."""
    needs_lengths: bool = True
    """False takes samples without tokens, too, unless there is a `length_fn`. Their length is the
    number of their supervised labels, or 1 where they have none that can be counted."""
    labels: str | None = None
    """How the model reads labels, one of `evenstep.plan.label_reading.READINGS`; None if the
    samples are to show it."""
    trim: Trim | None = None
    """Cuts off the padding that samples come with."""

    def __post_init__(self) -> None:
        for name in ("length_fn", "supervised_fn", "patches_fn"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise ConfigurationError(
                    f"{name}={function!r} must be a function from a sample to an integer, or None"
                )
        if self.labels is not None:
            check_one_of(READINGS, labels=self.labels)

    def __call__(self, samples: list[Any], names: Sequence[str]) -> Int64Array:
        """Length, supervised tokens, patches, images and patch pairs of each sample; and what its
        labels show of how the model reads them, which is nothing where `labels` says it.

        Args:
            samples: [n] what the dataset returned; in this list, those that `trim` cuts are
                replaced.
            names: [n] the name of each sample in an error, such as "sample 17".

        Returns:
            [n, 6] int64.

        Raises:
            SampleError: a function failed or did not return an integer from 0 to 2**31 - 1, or a
                length is 0.
            ConfigurationError: whether the first label counts is not known.
        """
        length_fn = self.length_fn or length_of
        may_lack_tokens = not self.needs_lengths and self.length_fn is None
        rows: list[tuple[int, ...]] = []
        for place, name in enumerate(names):
            if self.trim is not None:
                samples[place] = _called("trim", self.trim, name, samples[place])
            sample = samples[place]
            lacks_tokens = may_lack_tokens and not _has_tokens(sample)
            length = None
            if not lacks_tokens:
                found = _called("length_fn", length_fn, name, sample)
                length = _whole("length_fn", length_fn, name, found)
            if length == 0:
                raise SampleError(f"{name} has length 0; filter it in the dataset")
            if self.supervised_fn is None:
                found = _called("supervised_fn", supervised_of, name, sample, length)
            else:
                found = _called("supervised_fn", self.supervised_fn, name, sample)
                if not isinstance(found, Supervised):
                    found = Supervised(_whole("supervised_fn", self.supervised_fn, name, found))
            supervised, shows = self._read(found, name)
            if length is None:
                length = max(1, supervised)
            media = self._media(name, sample) if self.count_patches else MediaCounts()
            rows.append((length, supervised, *media, shows))
        return np.array(rows, np.int64).reshape(len(samples), 3 + len(MediaCounts._fields))

    def _read(self, found: Supervised, name: str) -> tuple[int, int]:
        if self.labels is not None:
            return found.read(self.labels), 0
        if found.shows & UNKNOWN:
            raise ConfigurationError(
                f"{name} has a label for each token and no 'input_ids' that would tell whether the "
                "first counts; pass labels='causal' if the model shifts labels, else labels='every'"
            )
        return found

    def _media(self, name: str, sample: Any) -> MediaCounts:
        if self.patches_fn is None:
            return MediaCounts(*_called("patches_fn", media_of, name, sample))
        patches = _called("patches_fn", self.patches_fn, name, sample)
        each = patches if isinstance(patches, (list, tuple, np.ndarray)) else [patches]
        for one in each:
            _whole("patches_fn", self.patches_fn, name, one)
        return media_of_patches(patches, sample)


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


def _check_numbers(tokens: Any) -> None:
    if isinstance(tokens, (list, tuple)) and are_integers(tokens):
        return
    try:
        numbers_of(tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SampleError(
            f"its tokens are {describe(tokens)} ({error}); return integers, or {_LENGTH_REMEDY}"
        ) from error


def _sequence_length(value: Any) -> int | None:
    """None where `value` is not one sequence of numbers."""
    if isinstance(value, np.ndarray) or is_tensor(value):
        return value.shape[0] if value.ndim == 1 else None
    if isinstance(value, (list, tuple)) and (not value or isinstance(value[0], _NUMBERS)):
        return len(value)
    return None
