"""What a collate function makes of a few rows: whether it prepares samples, how, and the blank."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from evenstep.batch.blank import Blank, BlankRow
from evenstep.batch.images.processors import is_processor
from evenstep.batch.images.rules import ImageTokensError
from evenstep.batch.measure import length_of
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import DefaultCollator, PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.smallest_media import blank_of, smallest_blank
from evenstep.data.shares import is_streamed
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.arguments import check_blank_of_rows
from evenstep.loader.options import LoaderOptions
from evenstep.loader.workers.worker_start import seed_everything

_ROWS = 8
_OURS = (PadCollator, PackCollator, DefaultCollator)


def asks_rows(options: LoaderOptions, ranks: int) -> bool:
    """Whether something depends on what `collate_fn` makes of rows, or a processor of an image."""
    collate_fn = options.collate_fn
    if is_processor(options.blank):
        return True
    if isinstance(collate_fn, PreparingCollator):
        blank = ranks > 1 and _finds_blank(collate_fn, options)
        return shows_rows(options.dataset) and (collate_fn.collator is None or blank)
    return _may_prepare(options) and shows_rows(options.dataset)


def _finds_blank(collate_fn: PreparingCollator, options: LoaderOptions) -> bool:
    return options.blank is None and collate_fn.blank is None


def _may_prepare(options: LoaderOptions) -> bool:
    """Whether samples may have no tokens before the collate function makes them."""
    ours = isinstance(options.collate_fn, _OURS)
    return not ours and options.policy.needs_lengths and options.measure.length_fn is None


def shows_rows(dataset: Any) -> bool:
    """Whether a few rows can be asked for. An iterable dataset that is not Hugging Face's may yield
    each sample only once."""
    if isinstance(dataset, IterableDataset):
        return is_streamed(dataset)
    return hasattr(dataset, "__len__")


def few_rows(dataset: Any) -> list[Callable[[], Any]]:
    """Calls that return a few rows: drawn at random from a map-style dataset, the first of a
    streamed one; none of any that does not show them."""
    if not shows_rows(dataset):
        return []
    if isinstance(dataset, IterableDataset):
        first = list(itertools.islice(iter(dataset), _ROWS))
        return [partial(first.__getitem__, place) for place in range(len(first))]
    size = len(dataset)
    drawn = np.random.default_rng(0).choice(size, min(size, _ROWS), replace=False)
    return [partial(_read, dataset, index) for index in drawn.tolist()]


def _read(dataset: Any, index: int) -> Any:
    if get_worker_info() is not None:
        seed_everything(index)
    return operator.getitem(dataset, index)


class _Prepared(NamedTuple):
    place: int
    """Among the rows."""
    row: Any
    sample: Any


def found_of_rows(
    options: LoaderOptions, dataset: Any, item: None = None
) -> tuple[dict[str, Any] | None, Blank | BlankRow | None]:
    """What the collate function makes of a few rows, as `PreparingCollator.found` says it, and the
    blank.

    Args:
        item: an argument of functions that run in workers.

    Raises:
        CollateError: the function makes something else of a group than of its rows alone.
        SampleError: it makes nothing of any of the rows.
        ConfigurationError: the blank that was given is not one for rows.
    """
    calls = few_rows(dataset)
    preparing = _preparing(options, calls)
    media = getattr(preparing, "media_fields", MEDIA_FIELDS)
    if preparing is None:
        good = _good(calls, lambda row: row, must=False)
        return None, _blank_of_processor(options, [each.sample for each in good], media)
    preparing = replace(preparing, packed=options.policy.packed)
    good = _good(calls, replace(preparing, late=False).prepare, must=bool(calls))
    if preparing.collator is None and good:
        undecoded = replace(preparing, late=preparing.late is not False).undecoded(dataset)
        same = [read() for read in few_rows(undecoded)] if undecoded is not dataset else []
        preparing = preparing.learned(
            [each.row for each in good], [same[each.place] for each in good if same]
        )
    if preparing.again:
        check_blank_of_rows(options.blank)
    samples, rows = [each.sample for each in good], [each.row for each in good]
    if _finds_blank(preparing, options):
        preparing = preparing.with_blank(samples, rows)
        return preparing.found, preparing.blank or None
    return preparing.found, _blank_of_processor(options, samples, media)


def _blank_of_processor(
    options: LoaderOptions, samples: Sequence[Any], media: tuple[str, ...]
) -> Blank | None:
    """The blank that the processor makes which was given in its place; None where none was."""
    if not is_processor(options.blank):
        return None
    found = smallest_blank(samples, options.blank, media)
    return blank_of(options.blank, media=media) if found is None else found


def _preparing(
    options: LoaderOptions, calls: Sequence[Callable[[], Any]]
) -> PreparingCollator | None:
    """The collate function, if it prepares samples: they have no tokens before it."""
    collate_fn = options.collate_fn
    if isinstance(collate_fn, PreparingCollator):
        return collate_fn
    if _may_prepare(options) and lacks_tokens(calls):
        return PreparingCollator(collate_fn=collate_fn)
    return None


def lacks_tokens(calls: Sequence[Callable[[], Any]]) -> bool:
    """Whether the first row that can be read has no tokens."""
    for read in calls:
        try:
            row = read()
        except Exception:  # the loader names what is wrong, when its turn comes
            continue
        try:
            length_of(row)
        except SampleError:
            return row is not None
        return False
    return False


def _good(
    calls: Sequence[Callable[[], Any]], prepare: Callable[[Any], Any], *, must: bool
) -> list[_Prepared]:
    """Rows and what they become, without those that cannot be prepared: when their turn comes, the
    loader names them.

    Args:
        must: one must be good.
    """
    good = []
    for place, read in enumerate(calls):
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
    if must and not good:
        raise SampleError(
            f"the samples have no 'input_ids', and collate_fn raises for each of {len(calls)} of "
            f"them alone: {described(failed)}"
        ) from failed
    return good
