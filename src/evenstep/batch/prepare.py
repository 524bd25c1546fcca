"""`PreparingCollator`: a collate function that prepares samples, run on each sample alone.

Some collate functions make tokens and pixels out of raw rows, such as those of TRL, LLaMA-Factory
and most scripts that call a processor. A sample's length is then known only once it has been
collated. So each row is collated alone, in a worker process. The result is a sample with a length,
pixels and labels. A group of such samples is padded or packed, and its media are joined.

A few rows are tried before training, and then the first of each kind: the group must be what the
function itself makes of it. Where only joining the rows gives something else, as with images that
it lays side by side, it collates each group by itself, from the rows (`again=True`). See
`evenstep.batch.joining`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch

from evenstep.batch.blank import ROW, Blank, BlankRow, towers_of
from evenstep.batch.count_media import LATE, MediaShape
from evenstep.batch.formats.hugging_face import rope_positions, to_hugging_face
from evenstep.batch.images.processors import user_processor
from evenstep.batch.images.rules import rule_of
from evenstep.batch.joining import (
    JoiningTrial,
    Kind,
    copy_of,
    keeping_random_state,
    kind_of,
    try_joining,
    unbatch,
)
from evenstep.batch.measure import length_of
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator, padded_multiple
from evenstep.batch.smallest_media import smallest_blank
from evenstep.errors import CollateError, ConfigurationError

logger = logging.getLogger("evenstep")

_AGAIN = (
    "PreparingCollator(collate_fn=..., again=True), which collates every group by collate_fn from "
    "its rows"
)


@dataclass(frozen=True, kw_only=True)
class PreparingCollator:
    """Prepares rows one by one, and collates groups of prepared samples.

    `evenstep.DataLoader` makes one itself where the samples of a map-style dataset have no
    ``input_ids`` and there is a `collate_fn`. Build one for an iterable dataset, or to set an
    option.
    """

    collate_fn: Callable[[list[Any]], Any]
    """Rows -> a mapping with ``input_ids`` [rows, tokens] and whatever the model takes."""
    again: bool = False
    """Collate each group by `collate_fn`, from its rows. Samples are then prepared twice: once to
    be measured, and once to be trained on. A loader sets it where a few rows of a map-style dataset
    show that joining them makes something else of what is no token and no label."""
    media_fields: tuple[str, ...] = MEDIA_FIELDS
    """Fields of images, videos and audio: see `evenstep.batch.media`."""
    collator: PadCollator | None = None
    """How groups are padded. None pads as `collate_fn` does, which a loader learns from a few rows
    of a map-style dataset; otherwise on the right, with 0."""
    packed: bool = False
    """Pack groups into one row, as keyword arguments of a model of transformers: see
    `evenstep.batch.to_hugging_face`. A loader sets it to what its policy says."""
    processor: Any = None
    """The processor of transformers that `collate_fn` uses. None looks for it: on `collate_fn`, or
    among what its code refers to."""
    late: bool | None = None
    """Plan with the sizes of images alone, and make pixels when a sample's group is collated: see
    `evenstep.batch.images`. None does so if, on a few rows of a map-style dataset, both ways give
    the same samples."""
    config: Any = None
    """The model's configuration (``model.config``), which packed groups with images need, as some
    models, such as Qwen-VL, place image tokens in time and space."""
    blank: Blank | BlankRow | Literal[False] | None = None
    """What groups without images get in jobs of several ranks. None makes one from a few rows;
    False adds none."""
    _kinds: frozenset[Kind] = field(default=frozenset(), repr=False, compare=False)
    """Those of the rows that were tried together."""
    _seen: dict[Kind, Any] = field(default_factory=dict, repr=False, compare=False)
    """Of this process: kind -> a row of it."""

    def __post_init__(self) -> None:
        if not callable(self.collate_fn):
            raise ConfigurationError(
                f"collate_fn={self.collate_fn!r} must be a function from a list of rows to a batch"
            )
        if self.again and (self.collator is not None or self.packed):
            raise ConfigurationError(
                "again=True collates and pads by collate_fn; leave out collator, and packed=True "
                "in the policy"
            )

    @property
    def pad_to_multiple_of(self) -> int | None:
        """Of the groups that it pads: as `collate_fn` does, unless there is a `collator`."""
        return None if self.packed else padded_multiple(self.collator or self.collate_fn)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_seen": {}}

    def prepare(self, row: Any, name: str = "a sample") -> dict[str, Any]:
        """The sample of one row.

        Args:
            name: what errors call it.

        Raises:
            SampleError: the row became several sequences, or none; or its image tokens do not match
                its images.
            CollateError: `collate_fn` returned something that is not a mapping.
            Exception: what `collate_fn` raises.
        """
        processor = self._processor()
        if processor is None and self.late and not self.again:
            raise ConfigurationError(f"late=True: {self._no_rule()}")
        if processor is None or self.again:
            return self._at_once(row)
        from evenstep.batch.images.late import prepared  # needs PIL, as such processors do

        return prepared(
            self._at_once,
            row,
            processor,
            late=bool(self.late),
            media=self.media_fields,
            name=name,
        )

    def any_processor(self) -> Any | None:
        return user_processor(self.collate_fn) if self.processor is None else self.processor

    def _processor(self) -> Any | None:
        """The processor that `collate_fn` uses, if it is known what its images become."""
        processor = self.any_processor()
        known = processor is not None and rule_of(getattr(processor, "image_processor", None))
        return processor if known else None

    def _at_once(self, row: Any) -> dict[str, Any]:
        batch = self.collate_fn([copy_of(row)])
        if not isinstance(batch, Mapping):
            raise CollateError(
                f"collate_fn returned a {type(batch).__name__} for a row without 'input_ids', and "
                "must return a mapping; or pass length_fn=, a function from a row to its tokens"
            )
        sample = unbatch(batch, self.media_fields)
        if self.again:
            for name, value in sample.items():
                if name in self.media_fields and isinstance(value, torch.Tensor) and value.ndim > 2:
                    sample[name] = MediaShape(tuple(value.shape))
            sample[ROW] = row
        return sample

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        """Collates one group.

        Raises:
            CollateError: the samples cannot be collated.
        """
        if self.again:
            _check_crossed(samples)
            return self.collate_fn([copy_of(sample[ROW]) for sample in samples])
        samples = [self._made(sample) for sample in samples]
        if not self.packed:
            return self._joined(samples)
        if any(name in sample for sample in samples for name in self.media_fields):
            self._check_packable(samples)
        batch = PackCollator(media_fields=self.media_fields)(samples)
        places = [rope_positions(self.config, sample) for sample in samples]
        known = [place for place in places if place is not None]
        if known:
            batch["position_ids"] = torch.cat(known, dim=1)[:, None]  # [4, 1, T]
        return to_hugging_face(batch, model=self.config)

    @property
    def _padder(self) -> PadCollator:
        multiple = self.pad_to_multiple_of
        padder = PadCollator(pad_to_multiple_of=multiple, media_fields=self.media_fields)
        return self.collator or padder

    def _joined(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        try:
            return self._padder(samples)
        except CollateError as error:
            what = str(error).partition("; ")[0]  # without a remedy for datasets
            raise CollateError(
                f"samples that collate_fn made of a row each cannot be joined: {what}; use {_AGAIN}"
            ) from error

    def _made(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        """A sample with its pixels."""
        late = sample.get(LATE)
        if late is None:
            return sample
        processor = self._processor()
        assert processor is not None
        made = {**sample, **late.made(processor.image_processor)}
        del made[LATE]
        return made

    def _check_packable(self, samples: Sequence[Mapping[str, Any]]) -> None:
        if self.config is None:
            raise CollateError(
                "packed groups with images need PreparingCollator(config=model.config)"
            )
        kind = getattr(self.config, "model_type", "")
        if kind.startswith("gemma"):
            raise CollateError(
                f"the model is {kind!r}, whose image tokens attend to those behind them, also of "
                "other documents in packed rows; use packed=False"
            )

    def undecoded(self, dataset: Any) -> Any:
        """The dataset to read rows from: where pixels are made late, images are not decoded as
        they are read, if that can be avoided."""
        if not self.late:
            return dataset
        from evenstep.batch.images.lazy_images import undecoded

        return undecoded(dataset)

    def learned(
        self, rows: Sequence[Any], undecoded: Sequence[Any] | None = None
    ) -> PreparingCollator:
        """One that pads as `collate_fn` does, and makes the same batches, as far as these rows
        show.

        Args:
            rows: a few, of different lengths, and with and without media.
            undecoded: the same, from the dataset that ``replace(self, late=True).undecoded``
                returns.

        Raises:
            CollateError: `collate_fn` makes other tokens or labels of a group than of its rows
                alone; or joined samples do not make its batch, and are to be packed, or collated by
                a `collator` that was given.
            ConfigurationError: ``late=True``, and pixels cannot be made late.
        """
        trial = self._tried(rows)
        _check_crossed(trial.samples)
        if self.again:
            return self
        if trial.difference is None:
            collator = replace(trial.collator, pad_to_multiple_of=self._padder.pad_to_multiple_of)
            made = replace(self, collator=collator, _kinds=trial.kinds)
            samples = trial.samples[: len(rows)]
            return replace(made, late=self._learned_late(undecoded or rows, samples))
        if self.packed or self.collator is not None or not trial.counts:
            raise CollateError(self._unlike(trial))
        logger.warning(
            "%s. So it collates every group, from its rows; if that belongs to images, videos or "
            "audio and is to be joined, name it in PreparingCollator(media_fields=)",
            trial.difference,
        )
        return replace(self, again=True)

    def _tried(self, rows: Sequence[Any]) -> JoiningTrial:
        return try_joining(
            rows,
            replace(self, again=False, late=False).prepare,
            self.collate_fn,
            self.collator,
            self.media_fields,
        )

    def _unlike(self, trial: JoiningTrial) -> str:
        also = "; and a policy that pads, such as Even(packed=False)" * self.packed
        if not trial.counts:
            also += "; and loss_scaling='sample' if a group has other numbers of labels"
        return f"{trial.difference}; use {_AGAIN}{also}"

    def prepare_checked(self, row: Any, name: str = "a sample") -> dict[str, Any]:
        """`prepare`; the first row of a kind is joined on trial with itself, and with one of each
        kind that was before it, unless rows of these kinds were tried together already.

        Raises:
            ConfigurationError: that is not what `collate_fn` makes of them.
            Exception: what `prepare` raises.
        """
        sample = self.prepare(row, name)
        kind = kind_of(sample)
        if self.again or kind in self._seen:
            return sample
        if not {kind, *self._seen} <= self._kinds:
            try:
                trial = self._tried([*self._seen.values(), row])
            except CollateError as error:
                raise ConfigurationError(f"{name}: {error}") from error
            if trial.difference is not None:
                raise ConfigurationError(f"{name}: {self._unlike(trial)}")
        self._seen[kind] = row
        return sample

    @property
    def found(self) -> dict[str, Any]:
        """What `learned` has found, of plain values."""
        padding = None
        if self.collator is not None:
            padding = {each.name: getattr(self.collator, each.name) for each in fields(PadCollator)}
        kinds = sorted(sorted(kind, key=repr) for kind in self._kinds)
        return {"again": self.again, "late": self.late, "padding": padding, "kinds": kinds}

    def with_found(self, found: Mapping[str, Any]) -> PreparingCollator:
        """One that has learned what another one has `found`."""
        padding = found["padding"]
        return replace(
            self,
            again=found["again"],
            late=found["late"],
            collator=None if padding is None else PadCollator(**padding),
            _kinds=frozenset(frozenset(map(tuple, kind)) for kind in found["kinds"]),
        )

    def _no_rule(self) -> str:
        """Why `_processor` is None."""
        processor = self.any_processor()
        if processor is None:
            return "collate_fn shows no processor; pass PreparingCollator(processor=)"
        kind = type(getattr(processor, "image_processor", None)).__name__
        return f"what images become is not known for an image processor of type {kind}"

    def with_blank(self, samples: Sequence[Any], rows: Sequence[Any]) -> PreparingCollator:
        """One that has a blank, if any of these samples has an image.

        Args:
            samples: a few prepared ones.
            rows: what they were made of.
        """
        if self.again:
            sizes = [
                (-len(towers), length_of(sample), place)
                for place, sample in enumerate(samples)
                if (towers := towers_of(sample, self.media_fields))
            ]
            if not sizes:
                return self
            smallest = self.prepare(rows[min(sizes)[-1]])
            return replace(self, blank=BlankRow(smallest, self.media_fields))
        made = smallest_blank(samples, self.any_processor(), self.media_fields)
        return replace(self, blank=made)

    def _learned_late(self, rows: Sequence[Any], samples: Sequence[Mapping[str, Any]]) -> bool:
        """
        Args:
            rows: undecoded.
            samples: those rows, prepared at once.
        """
        pixels = any(n in s for s in samples for n in self.media_fields)
        if self.late is False or not pixels:
            return bool(self.late)
        processor, why = self._processor(), None
        if processor is None:
            why = self._no_rule()
        else:
            from evenstep.batch.images.late import why_at_once

            with keeping_random_state():
                why = why_at_once(self._at_once, rows, samples, processor)
        if why is not None and self.late:
            raise ConfigurationError(f"late=True: {why}")
        when = "once batches are planned" if why is None else f"before batches are planned: {why}"
        logger.info("pixels are made %s", when)
        return why is None


def _check_crossed(samples: Sequence[Mapping[str, Any]]) -> None:
    """
    Raises:
        CollateError: some rows have images that the model sees by cross-attention, and some none.
    """
    if len({"cross_attention_mask" in sample for sample in samples}) > 1:
        raise CollateError(
            "rows with images have a cross_attention_mask, as those of Mllama, on which rows "
            "without depend; give every row one, if only a small one, or leave them out"
        )
