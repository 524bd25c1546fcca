"""Whether samples that a collate function made of a row each make its batch of all rows, if joined.

`unbatch` makes a sample of what a processor or a collate function makes of one row. Fields with one
value per token lose the batch's dimension, and their padding. Media keep their dimensions: the
first counts images, tiles or patches. `PadCollator` and `PackCollator` make batches of such samples
again.

`try_joining` compares those with the function's own batch, up to padding. Where they differ,
samples would be trained on in another form than the function's author meant, and nothing else would
show it.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenstep.batch.columns import TOKENS, tensor_of
from evenstep.batch.count_media import LATE
from evenstep.batch.labels import IGNORE_INDEX, LABEL_FIELDS, size_of
from evenstep.batch.media import MEDIA_FIELDS, padded
from evenstep.batch.pad import PadCollator
from evenstep.batch.trim import MASK, Trim
from evenstep.errors import CollateError, SampleError, described


@contextlib.contextmanager
def keeping_random_state() -> Iterator[None]:
    """What is drawn within does not change what is drawn after it."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def unbatch(batch: Mapping[str, Any], media: Collection[str] = MEDIA_FIELDS) -> dict[str, Any]:
    """The sample of a batch of one.

    - ``input_ids``, ``labels`` and all tensors of their shape [1, T, ...] become [T, ...], without
      padding: see `evenstep.batch.trim`.
    - Labels of another length lose the -100 at their end.
    - Media keep their dimensions.
    - Other tensors [1, ...] become [...], and lists of one element that element. All else is kept.

    Args:
        batch: what a processor or a collate function returned for one row.
        media: names of the fields of images, videos and audio.

    Raises:
        SampleError: ``input_ids`` has several rows, or none; or as `Trim`.
    """
    tokens = batch.get(TOKENS)
    if isinstance(tokens, torch.Tensor) and (tokens.ndim != 2 or len(tokens) != 1):
        raise SampleError(
            f"one row became input_ids of shape {tuple(tokens.shape)}, not (1, tokens); a "
            "collate function that prepares samples must make one sequence of each row"
        )
    width = tokens.shape[1] if isinstance(tokens, torch.Tensor) else None
    sample = dict(batch)
    for name, value in batch.items():
        whole = name in media and tokens is not None
        if whole or size_of(value) != 1 or not isinstance(value, (torch.Tensor, list)):
            continue
        sample[name] = row = value[0]
        if name in LABEL_FIELDS and getattr(value, "ndim", 0) == 2 and len(row) != width:
            real = (row != IGNORE_INDEX).nonzero()  # of an encoder-decoder
            sample[name] = row[: int(real[-1]) + 1] if len(real) else row[:0]
    trimmed: dict[str, Any] = Trim(media)(sample)
    return trimmed


Kind = frozenset[tuple[str, int | None]]
"""Fields of a sample, with the number of their dimensions."""


def kind_of(sample: Mapping[str, Any]) -> Kind:
    """Samples of one kind are joined in one way."""
    return frozenset(
        (name, len(value.shape) if hasattr(value, "shape") else None)
        for name, value in sample.items()
        if name != LATE
    )


def copy_of(row: Any) -> Any:
    """For a collate function, which may take fields out of its rows."""
    return copy.copy(row) if isinstance(row, Mapping) else row


@dataclass(frozen=True)
class JoiningTrial:
    """What came of a trial."""

    samples: list[dict[str, Any]]
    """The rows, prepared one by one."""
    collator: PadCollator
    """Pads as the collate function does."""
    kinds: frozenset[Kind]
    """Of the samples."""
    counts: bool
    """Whether rows have the same tokens and labels together as alone."""
    difference: str | None
    """How the function's batch differs from joined samples; None if it does not."""


def try_joining(
    rows: Sequence[Any],
    prepare: Callable[[Any], dict[str, Any]],
    collate_fn: Callable[[list[Any]], Any],
    collator: PadCollator | None,
    media: tuple[str, ...],
) -> JoiningTrial:
    """Joins rows on trial.

    Args:
        rows: a few; one of a kind is taken twice, as one does not show how two are joined.
        prepare: makes a sample of a row by `collate_fn`.
        collator: that joins samples, and what is drawn at random as it likes; None learns how
            `collate_fn` pads.
        media: names of media fields.

    Raises:
        CollateError: `collate_fn` raises for all rows together.
    """
    # From one random state, so that what is drawn for each row in turn is the same each time.
    with keeping_random_state():
        samples = [prepare(row) for row in rows]
        kinds = list(map(kind_of, samples))
        lone = [place for place, kind in enumerate(kinds) if kinds.count(kind) == 1]
        samples += [prepare(rows[place]) for place in lone]
    rows = [*rows, *(rows[place] for place in lone)]
    try:
        with keeping_random_state():
            theirs = collate_fn(list(map(copy_of, rows)))
    except Exception as error:
        raise CollateError(
            f"collate_fn takes each of {len(kinds)} rows alone, and raises for all of them "
            f"together: {described(error)}"
        ) from error
    drawn: set[str] = set()
    if collator is None:
        collator = PadCollator(media_fields=media, **padding_of(samples, theirs, media))
    else:
        for place, other in zip(lone, samples[len(kinds) :]):
            drawn |= {name for name in other if not _equal(samples[place].get(name), other[name])}
    together = f"of {len(rows)} rows together collate_fn makes another"
    if name := unlike_rows(samples, theirs, (TOKENS, *LABEL_FIELDS)):
        how: str | None = f"{together} {name!r} than of each alone"
        return JoiningTrial(samples, collator, frozenset(kinds), False, how)
    try:
        how = difference(samples, collator(samples), theirs, media=media, drawn=drawn)
    except Exception as error:
        said = str(error) if isinstance(error, CollateError) else described(error)
        how = said.partition("; ")[0]  # without a remedy for datasets
    if how is not None:
        how = f"{together} batch than joining them does: {how}"
    return JoiningTrial(samples, collator, frozenset(kinds), True, how)


def padding_of(
    samples: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any], media: Collection[str]
) -> dict[str, Any]:
    """Options of `PadCollator` that pad as a collate function did.

    Args:
        samples: what it made of each row alone, as `unbatch` returns them.
        theirs: what it made of all rows.
        media: names of media fields.
    """
    sides, values = [], {}
    for name, whole in theirs.items():
        if name in media or not isinstance(whole, torch.Tensor) or whole.ndim < 2:
            continue
        for row, sample in zip(whole, samples):
            part = sample.get(name)
            if not isinstance(part, torch.Tensor) or not part.ndim or len(part) >= len(row):
                continue
            side = _side(part, row)
            if side is None:
                continue
            sides.append(side)
            rest = row[len(part) :] if side == "right" else row[: len(row) - len(part)]
            values[name] = rest.flatten()[0].item()
    style: dict[str, Any] = {"side": "left" if "left" in sides else "right"}
    if "input_ids" in values:
        style["pad_token_id"] = values.pop("input_ids")
    style["pad_values"] = values
    return style


def _side(part: torch.Tensor, row: torch.Tensor) -> str | None:
    """Where `row` has padding beside `part`; None if it does not hold it."""
    if part.shape[1:] != row.shape[1:]:
        return None
    if torch.equal(row[: len(part)], part.to(row.dtype)):
        return "right"
    return "left" if torch.equal(row[len(row) - len(part) :], part.to(row.dtype)) else None


def unlike_rows(
    samples: Sequence[Mapping[str, Any]], batch: Mapping[str, Any], names: Iterable[str]
) -> str | None:
    """The first of these fields of which a batch does not hold each sample's own, up to padding.

    Args:
        samples: those of the first rows of the batch.
        names: fields; one that neither has counts as the same.
    """
    for name in names:
        values = [sample[name] for sample in samples if name in sample]
        if not values and name not in batch:
            continue
        rows: Any = batch.get(name)
        there = min(len(values), _rows(rows)) == len(samples)
        if not there or not all(map(_holds, rows, values)):
            return name
    return None


def unlike_beginning(batch: Mapping[str, Any], longer: Mapping[str, Any], rows: int) -> str | None:
    """The first field of which a batch does not begin with another one's rows, up to padding; or,
    where a field is no row for each sample, is not the other one's.

    Args:
        rows: of `batch`.
    """
    by_row = [name for name, value in batch.items() if _rows(value) == rows]
    for name, value in batch.items():
        if name not in by_row and not _equal(value, longer.get(name)):
            return name
    return unlike_rows(
        [{name: batch[name][row] for name in by_row} for row in range(rows)], longer, by_row
    )


def difference(
    samples: Sequence[Mapping[str, Any]],
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    media: Collection[str],
    drawn: Collection[str] = (),
) -> str | None:
    """Where two batches of the same rows differ, up to padding; None if they do not.

    Args:
        samples: the rows, prepared one by one.
        ours: those, collated.
        theirs: what the collate function made of all rows.
        media: names of media fields.
        drawn: fields that are not compared.
    """
    for name in (*theirs, *(name for name in ours if name not in theirs)):
        if name in drawn or (name == MASK and name not in theirs):
            continue
        if name not in ours or name not in theirs:
            where = "each row alone" if name not in theirs else "them together"
            return f"{name!r} is there only for {where}"
        mine, other = ours[name], theirs[name]
        if not isinstance(mine, torch.Tensor):
            same = _equal(mine, other)
        elif name in media:
            same = isinstance(other, torch.Tensor) and _equal_up_to_zeros(mine, other)
        else:
            nested = isinstance(other, list) and not all(isinstance(x, (int, float)) for x in other)
            same = not nested and len(mine) == len(samples) == _rows(other)
            same = same and unlike_rows(samples, theirs, [name]) is None
        if not same:
            return f"{name!r} is {_shown(other)}, and {_shown(mine)} where its rows are joined"
    return None


def _rows(value: Any) -> int:
    return len(value) if isinstance(value, list) or getattr(value, "ndim", False) else -1


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"of shape {tuple(shape)}"


def _equal(mine: Any, other: Any) -> bool:
    """Whether two values that are no tensors are the same, with all that they hold."""
    if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
        return mine.shape == other.shape and torch.allclose(
            mine.to(other.dtype), other, rtol=1e-4, atol=1e-4, equal_nan=True
        )
    if type(mine) is not type(other):
        return False
    if isinstance(mine, Mapping):
        return mine.keys() == other.keys() and all(_equal(mine[key], other[key]) for key in mine)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(other) and all(map(_equal, mine, other))
    return np.array_equal(mine, other)


def _holds(row: Any, value: Any) -> bool:
    """Whether the row of a batch is a sample's value, and padding."""
    part, whole = tensor_of(value), tensor_of(row)
    if part is None or whole is None:
        return _equal(value, row)
    if part.shape == whole.shape:
        return _equal(part, whole)
    return bool(part.ndim) and bool(whole.ndim) and _side(part, whole) is not None


def _equal_up_to_zeros(mine: torch.Tensor, other: torch.Tensor) -> bool:
    if mine.ndim != other.ndim or mine.shape[:1] != other.shape[:1]:
        return False
    largest = [max(sizes) for sizes in zip(mine.shape[1:], other.shape[1:])]
    return _equal(*(padded(each, largest) for each in (mine, other)))
