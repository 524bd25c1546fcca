"""`SampleMeasure`: what a planner knows of a sample, its lengths by modality and supervised tokens.

Supervised tokens, those that contribute to the loss, have their own column, `SUPERVISED`: with it
loss scales are exact before any batch is made. It is not a modality, and no strategy counts it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.batch.count_media import media_of, patches_of
from evenstep.batch.measure import length_of, supervised_of
from evenstep.data.source import Source
from evenstep.errors import SampleError, described
from evenstep.plan.too_long import too_long

SUPERVISED = "supervised"
"""The name of the column."""

MODALITIES: Mapping[str, Callable[[Any], int]] = {"text": length_of, "image": patches_of}
"""The default modalities of a job."""


def images_of(sample: Any) -> int:
    """Images, videos and sounds of a sample."""
    return media_of(sample).images


def patch_pairs_of(sample: Any) -> int:
    """Sum over the images of a sample of their squared patches."""
    return media_of(sample).patch_pairs


MEDIA: Mapping[str, Callable[[Any], int]] = {
    "patches": patches_of,
    "images": images_of,
    "patch_pairs": patch_pairs_of,
}
"""What is measured, too, for a policy that counts patches."""

_LIMIT = 1 << 31  # of a length
_MOST_UNITS = 1 << 14  # of a sample: metadata of a step is held and sent whole

Length = int | tuple[int, ...]
"""In a modality: of the sample, or of each of its units, such as images."""


@dataclass(frozen=True, kw_only=True)
class SampleMeasure:
    """Measures the prepared samples of any source. Picklable if its functions are."""

    modalities: Mapping[str, Callable[[Any], int | Sequence[int]]]
    supervised: Callable[[Any], int] | None
    """From a sample to its supervised tokens; None counts labels."""
    labels: str
    """How the model reads labels: see `evenstep.plan.label_reading`."""
    counted: str
    """The modality whose length is the number of labels if a sample has no labels."""
    too_long: str = "error"
    limit: int | None = None
    """Tokens of a sample that is not too long."""
    of_limit: tuple[str, ...] = ()
    """The modalities that are counted for it."""

    def fitted(
        self, source: Source, sample: Any, shard: int, index: int
    ) -> tuple[Any, tuple[Length, ...]]:
        """A sample as it is trained on, and what the call returns of it: see
        `evenstep.plan.too_long`. With "error" the planner refuses it, once it is drawn.

        Raises:
            TooLongError: it is to be left out.
            SampleError: it cannot be cut; or as the call raises.
        """
        lengths = self(source, sample, shard, index)
        if self.limit is None or self.too_long == "error":
            return sample, lengths
        own = dict(zip(self.modalities, map(total, lengths)))
        tokens, name = sum(own[each] for each in self.of_limit), _name((source.name, shard, index))
        if tokens <= self.limit:
            return sample, lengths
        if self.too_long == "skip":
            raise too_long(name, tokens, self.limit)
        from evenstep.batch.cut import Fitting  # needs torch, which a loader may not need

        sample = Fitting(choice=self.too_long, limit=self.limit).fitted(sample, name, tokens)
        return sample, self(source, sample, shard, index)

    def __call__(self, source: Source, sample: Any, shard: int, index: int) -> tuple[Length, ...]:
        """Lengths in the order of `modalities`, then supervised tokens.

        Raises:
            SampleError: a length cannot be determined.
        """
        where = source.name, shard, index
        given = source.measure(sample, shard, index) if source.lengths is not None else {}
        if unknown := [modality for modality in given if modality not in self.modalities]:
            raise SampleError(
                f"lengths= of source {source.name!r} gives {unknown[0]!r} for {_name(where)}; name "
                f"it in modalities= of MeasureOptions, which has {', '.join(self.modalities)}"
            )
        lengths: dict[str, Length] = {
            modality: given[modality] if modality in given else _length(modality, where, of, sample)
            for modality, of in self.modalities.items()
        }

        def labelled(sample: Any) -> int:
            return supervised_of(sample, total(lengths[self.counted])).read(self.labels)

        counted = _count("supervised tokens", where, self.supervised or labelled, sample)
        return (*lengths.values(), counted)


def total(length: Length) -> int:
    """Of a sample."""
    return length if isinstance(length, int) else sum(length)


_Where = tuple[str, int, int]
"""Source, shard and index of a sample."""


def _length(what: str, where: _Where, function: Callable[[Any], Any], sample: Any) -> Length:
    value: Any = None

    def in_all(sample: Any) -> Any:
        nonlocal value
        value = function(sample)
        return sum(value) if isinstance(value, (list, tuple)) else value

    count = _count(what, where, in_all, sample)
    if not isinstance(value, (list, tuple)):
        return count
    units = tuple(_count(what, where, operator.index, each) for each in value)
    if len(units) > _MOST_UNITS or 0 in units:
        raise SampleError(
            f"{what} of {_name(where)}: {len(units):,} units, the shortest of {min(units):,}. "
            f"There may be up to {_MOST_UNITS:,}, each from 1; split the sample in the source's "
            "transform, or leave out what is empty"
        )
    return units


def _count(what: str, where: _Where, function: Callable[[Any], int], sample: Any) -> int:
    try:
        value = function(sample)
        if type(value) is int and 0 <= value < _LIMIT:
            return value
        count = operator.index(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        raise SampleError(
            f"{what} of {_name(where)} cannot be determined: {described(error)}"
        ) from error
    if isinstance(value, bool) or not 0 <= count < _LIMIT:
        raise SampleError(
            f"{what} of {_name(where)} is {value!r}; it must be a whole number from 0 to "
            f"{_LIMIT - 1:,}"
        )
    return count


def _name(where: _Where) -> str:
    source, shard, index = where
    return f"sample {source}[{shard}][{index}]"
