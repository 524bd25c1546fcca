"""How a trainer's model reads its labels, what its loss is a mean over, and whether batches are
packed: as the user says, or as the collate function makes them.

`inherits_from_trl` knows TRL's classes by name, as TRL may not be installed.

TRL's trainers of preferences are DPO, KTO, reward models and their kin. A sample of theirs has
fields such as ``chosen_ids`` and ``rejected_ids``, of which the collate function makes several
rows, all padded to one length. So a sample has as many tokens as these rows hold when it is
collated alone, and a group as many as the batch will hold with its padding. The loss is a mean over
samples, not over tokens.

TRL's collate function for KTO with images makes rows of two samples, for its estimate of a KL
divergence; of text, the dataset has these pairs. That is refused: evenstep decides which samples
share a batch, and one of a single sample would make its pair of that sample alone.
"""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import transformers

from evenstep.batch.blank import towers_of
from evenstep.batch.images.processors import is_processor
from evenstep.batch.joining import copy_of, unbatch
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.trim import Trim
from evenstep.errors import ConfigurationError, SampleError
from evenstep.loader.learning.probe import Run
from evenstep.loader.learning.rows import few_rows, lacks_tokens
from evenstep.plan.policies.even import Even
from evenstep.plan.policy import Policy


def inherits_from_trl(kind: type, names: Collection[str]) -> bool:
    """Whether a class is one of TRL's of these names, or inherits from one."""
    return any(
        each.__name__ in names and each.__module__.partition(".")[0] == "trl"
        for each in kind.__mro__
    )


_SHIFTING = re.compile("ForCausalLM$|LMHeadModel$|ForConditionalGeneration$|DoubleHeadsModel$")
_NOT_SHIFTING = re.compile("For(Token|Sequence|Image|Video|Audio|AudioFrame)Classification$")
_MASKED, _CTC = re.compile("ForMaskedLM$"), re.compile("ForCTC$")


def label_options(trainer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The loader's ``labels`` and ``loss_scaling``, as far as the model's class says them.

    Args:
        given: options of the user, which win.

    Raises:
        ConfigurationError: the model's loss is a sum.
    """
    found: dict[str, Any] = {}
    if trainer.compute_loss_func is None and (labels := _labels(trainer)) is not None:
        found["labels"] = labels
    if _is(trainer.model, _CTC) and "loss_scaling" not in given:
        reduction = trainer.model.config.ctc_loss_reduction
        if reduction != "mean":
            raise ConfigurationError(
                f"ctc_loss_reduction={reduction!r} depends on how many samples a batch has; set "
                "model.config.ctc_loss_reduction='mean' and scale the learning rate"
            )
        found["loss_scaling"] = "sample"
    return {**found, **given}


def drawn_once(trainer: Any, collate_fn: Callable[[list[Any]], Any]) -> Any:
    """The collate function; of a masked language model, such that the masks of a sample are drawn
    once, when it is measured: else their number would not be known before its batch is made."""
    ours = isinstance(collate_fn, (PadCollator, PackCollator, PreparingCollator))
    if ours or not _is(trainer.model, _MASKED):
        return collate_fn
    tokenizer = getattr(collate_fn, "tokenizer", None) or getattr(trainer, "processing_class", None)
    padder = PadCollator(
        side=getattr(tokenizer, "padding_side", "right"),
        pad_token_id=getattr(tokenizer, "pad_token_id", None) or 0,
        pad_to_multiple_of=getattr(collate_fn, "pad_to_multiple_of", None),
    )
    return PreparingCollator(collate_fn=collate_fn, collator=padder)


def _labels(trainer: Any) -> str | None:
    model = trainer.model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return "every"
    if any(_is(model, kind) for kind in (_NOT_SHIFTING, _MASKED, _CTC)):
        return "every"
    if inherits_from_trl(type(trainer), ("SFTTrainer",)):
        return "causal"
    # Some of these models take their loss without shifting, or both ways: their samples show it.
    forward = _forward(model, _SHIFTING)
    code: Any = getattr(inspect.unwrap(forward), "__code__", None) if forward is not None else None
    shifts = code is not None and "loss_function" in code.co_names
    return "causal" if shifts and "decoder_input_ids" not in code.co_varnames else None


def _is(model: Any, kind: re.Pattern[str]) -> bool:
    return _forward(model, kind) is not None


def _forward(model: Any, kind: re.Pattern[str]) -> Callable[..., Any] | None:
    """The forward method of the class of a kind that a model is of, or inherits from."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    for each in type(base).__mro__:
        if kind.search(each.__name__):
            kept: Any = each
            found: Callable[..., Any] = kept.__dict__.get("forward", kept.forward)
            return found
    return None


logger = logging.getLogger("evenstep")

_TRAINERS = ("DPOTrainer", "KTOTrainer", "RewardTrainer")
_OF_WHOLE_BATCHES = ("sft", "aot", "aot_unpaired")
"""Losses of DPOTrainer that are no mean over pairs: of tokens, or of all pairs sorted."""


def trains_preferences(trainer: Any) -> bool:
    """Whether the trainer's class is one of TRL's for preferences, or inherits from one."""
    return inherits_from_trl(type(trainer), _TRAINERS)


def preference_options(
    trainer: Any, collate_fn: Callable[[list[Any]], Any], *, packed: bool
) -> dict[str, Any]:
    """Options of the loader that such a trainer needs.

    Raises:
        ConfigurationError: batches are to be packed, or its collate function pairs samples.
    """
    if packed:
        raise ConfigurationError(
            "packed=True: TRL's trainers of preferences take padded pairs; leave it out"
        )
    coupled = getattr(trainer, "calculate_KL", False)
    if coupled and is_processor(getattr(trainer, "processing_class", None)):
        raise ConfigurationError(
            "TRL's KTOTrainer pairs samples that have images in its collate function; use "
            "KTOConfig(loss_type='apo_zero_unpaired'), which needs no pairs"
        )
    inexact = [each for each in getattr(trainer, "loss_types", ()) if each in _OF_WHOLE_BATCHES]
    if coupled:
        inexact.append(trainer.loss_type)
    if inexact and trainer.is_world_process_zero():
        logger.warning(
            "loss_type %s is not a mean over samples alone, so its gradient depends on how an "
            "update is divided into batches; evenstep weighs batches by their samples",
            ", ".join(inexact),
        )
    return {"length_fn": TokensOfRows(collate_fn), "loss_scaling": "sample"}


@dataclass(frozen=True)
class TokensOfRows:
    """The tokens of all rows that the collate function makes of a sample, with their padding."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> int:
        batch = collated_alone(self.collate_fn, sample)
        rows = [value for name, value in batch.items() if name.endswith("input_ids")]
        if not rows:
            raise SampleError(
                f"the collate function makes no field that ends in 'input_ids': {sorted(batch)}"
            )
        return sum(map(len, rows)) * max(each.shape[1] for each in rows)


def collated_alone(collate_fn: Callable[[list[Any]], Any], sample: Any) -> Any:
    """What the collate function makes of a sample alone. It may take fields out of what it is
    given."""
    return collate_fn([copy_of(sample)])


class RowsFound(NamedTuple):
    """What a trainer's collate function makes of a few rows."""

    packs: bool
    """It makes one row of several samples."""
    prepares: bool
    """The rows have no tokens before it."""
    media: bool
    """A row has images, or another of the media fields."""


def rows_found(dataset: Any, collate_fn: Callable[[list[Any]], Any], run: Run) -> RowsFound:
    """The answer to a question: see `evenstep.loader.learning`."""
    (found,) = run(partial(_found, collate_fn), dataset, [None], 1)
    return found


def _found(collate_fn: Callable[[list[Any]], Any], dataset: Any, item: None) -> RowsFound:
    calls = few_rows(dataset)
    media = any(_has_media(read) for read in calls)
    return RowsFound(_packs(collate_fn, calls), lacks_tokens(calls), media)


def choose_packing(
    trainer: Any,
    policy: Policy,
    packed: bool | None,
    collate_fn: Callable[[list[Any]], Any],
    found: RowsFound | None,
) -> tuple[Policy, Callable[[list[Any]], Any]]:
    """The policy, packed or not, and a collate function that fits it.

    Args:
        packed: what the user said; None packs where the policy says so, or, of an `Even`, where the
            collate function makes one row of its samples.
        collate_fn: the trainer's, or the user's.
        found: what it makes of a few rows; None where it is evenstep's own.

    Raises:
        ConfigurationError: the policy has no such form, or the model would let the documents of a
            row see each other.
    """
    if packed is None and isinstance(policy, Even) and found is not None and found.packs:
        packed = True
    if packed is not None and packed != policy.packed:
        if all(field.name != "packed" for field in fields(policy)):  # type: ignore[arg-type]
            raise ConfigurationError(
                f"packed={packed}, and {type(policy).__name__} has no such form; use Even, "
                "or leave packed out"
            )
        policy = replace(policy, packed=packed)  # type: ignore[type-var]
    if policy.packed:
        attention = getattr(trainer.model.config, "_attn_implementation", None) or ""
        if int(transformers.__version__.partition(".")[0]) < 5 and "flash" not in attention:
            raise ConfigurationError(
                f"transformers {transformers.__version__} lets packed documents see each other "
                f"under attention {attention!r}; use flash attention, or packed=False"
            )
        if found is not None and not found.packs:
            collate_fn = PreparingCollator(collate_fn=collate_fn)
    return policy, collate_fn


def _has_media(read: Callable[[], Any]) -> bool:
    try:
        return bool(towers_of(read()))
    except Exception:  # what is wrong with a sample, the loader says
        return False


def _packs(collate_fn: Callable[[list[Any]], Any], rows: Sequence[Callable[[], Any]]) -> bool:
    """Whether a collate function makes one row of several samples."""
    if len(rows) < 2:
        return False
    try:
        pair = [Trim(packed=True)(row()) for row in rows[:2]]  # as a packing loader does
        # A collate function may take fields out of its rows.
        tokens = [len(unbatch(collate_fn([copy.copy(row)]))["input_ids"]) for row in pair]
        together = collate_fn([copy.copy(row) for row in pair])
        return tuple(together["input_ids"].shape) == (1, sum(tokens))
    except Exception:  # what is wrong with a sample, the loader says
        return False
