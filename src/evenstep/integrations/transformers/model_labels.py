"""How a trainer's model reads its labels, and what its loss is a mean over.

`inherits_from_trl` knows TRL's classes by name, as TRL may not be installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.errors import ConfigurationError


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
                f"ctc_loss_reduction={reduction!r} sums the losses of a batch, so "
                "they depend on how many samples it has, and evenstep's batches have different "
                "numbers of them; set model.config.ctc_loss_reduction='mean' and scale the "
                "learning rate"
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
