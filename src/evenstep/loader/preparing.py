"""Whether a collate function prepares the samples, and how it pads: found out on a few rows."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset

from evenstep.batch.blank import Blank
from evenstep.batch.images.rules import ImageTokensError
from evenstep.batch.measure import Measure, length_of
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import DefaultCollator, PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.random_state import keeping_random_state
from evenstep.batch.smallest_media import smallest_blank
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.plan.policy import Policy

_ROWS = 8
"""Rows of which the collate function's batch is compared with ours."""


def with_preparation(
    collate_fn: Callable[[list[Any]], Any],
    dataset: Any,
    *,
    policy: Policy,
    measure: Measure,
    finds_blank: bool,
) -> Callable[[list[Any]], Any]:
    """The collate function, as a `PreparingCollator` where it prepares the samples.

    Args:
        finds_blank: look for the blank of the job, where it is not known.

    Raises:
        CollateError: it makes something else of a group than of its samples alone.
        SampleError: it makes nothing of any of a few samples.
    """
    if not prepares(collate_fn, dataset, policy=policy, measure=measure):
        return collate_fn
    preparing = collate_fn
    if not isinstance(preparing, PreparingCollator):
        preparing = PreparingCollator(collate_fn=collate_fn)
    preparing = replace(preparing, packed=policy.packed)
    with keeping_random_state():
        rows = few_rows(dataset)
        if policy.dynamic and preparing.late is None:
            # Ranks send samples to each other, as arrays.
            preparing = replace(preparing, late=False)
        learns = preparing.collator is None
        finds_blank = finds_blank and preparing.blank is None
        if rows and (learns or finds_blank):
            good = _good(rows, replace(preparing, late=False).prepare)
            if learns:
                undecoded = replace(preparing, late=preparing.late is not False).undecoded(dataset)
                same = [read() for read in few_rows(undecoded)] if undecoded is not dataset else []
                preparing = preparing.learned(
                    [each.row for each in good], [same[each.place] for each in good if same]
                )
            if finds_blank:
                samples, read = [each.sample for each in good], [each.row for each in good]
                preparing = preparing.with_blank(samples, read)
    return preparing


def prepares(
    collate_fn: Callable[[list[Any]], Any], dataset: Any, *, policy: Policy, measure: Measure
) -> bool:
    """Whether a collate function prepares the samples: they have no tokens before it."""
    if isinstance(collate_fn, PreparingCollator):
        return True
    ours = isinstance(collate_fn, (PadCollator, PackCollator, DefaultCollator))
    if ours or not policy.needs_lengths or measure.length_fn is not None:
        return False
    with keeping_random_state():
        rows = few_rows(dataset)
        return bool(rows) and _lacks_tokens(rows[0])


def blank_of_rows(dataset: Any, processor: Any) -> Blank | None:
    """The blank of a job whose samples have tokens, if a few of them have images."""
    samples: list[Any] = []
    with keeping_random_state():
        for read in few_rows(dataset):
            # What is wrong with a sample the loader says when its turn comes.
            with contextlib.suppress(Exception):
                samples.append(read())
        return smallest_blank(samples, processor)


def few_rows(dataset: Any) -> list[Callable[[], Any]]:
    """Calls that return a few rows, alike on all ranks: drawn at random from a map-style dataset,
    the first of a streamed one of Hugging Face. Any other iterable one may yield each sample only
    once, so it is not asked."""
    if isinstance(dataset, IterableDataset):
        if type(dataset).__module__.partition(".")[0] != "datasets":
            return []
        first = list(itertools.islice(iter(dataset), _ROWS))
        return [partial(first.__getitem__, place) for place in range(len(first))]
    if not hasattr(dataset, "__len__"):
        return []
    size = len(dataset)
    drawn = np.random.default_rng(0).choice(size, min(size, _ROWS), replace=False)
    return [partial(operator.getitem, dataset, index) for index in drawn.tolist()]


def _lacks_tokens(read: Callable[[], Any]) -> bool:
    try:
        row = read()
    except Exception:  # the loader names what is wrong, when its turn comes
        return False
    try:
        length_of(row)
    except SampleError:
        return True
    return False


class _Prepared(NamedTuple):
    place: int
    """Among the rows."""
    row: Any
    sample: Any


def _good(rows: Sequence[Callable[[], Any]], prepare: Callable[[Any], Any]) -> list[_Prepared]:
    """Rows and what they become, without those that cannot be prepared: when their turn comes, the
    loader names them."""
    good = []
    for place, read in enumerate(rows):
        try:
            row = read()
            sample = prepare(row)
        except ImageTokensError as error:
            failed: Exception = error
        except EvenstepError:
            raise
        except Exception as error:
            failed = error
        else:
            good.append(_Prepared(place, row, sample))
    if not good:
        raise SampleError(
            f"the samples have no 'input_ids', and collate_fn raises for each of {len(rows)} of "
            f"them alone: {described(failed)}"
        ) from failed
    return good
