"""Whether batches are packed: found out on two samples, with the collate function and the model."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from evenstep.batch.blank import towers_of
from evenstep.batch.formats.hugging_face import to_hugging_face
from evenstep.batch.joining import keeping_random_state, unbatch
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.trim import Trim
from evenstep.errors import ConfigurationError, described
from evenstep.integrations.rank_values import by_rank_0
from evenstep.loader.learning.probe import Run
from evenstep.loader.learning.rows import few_rows, lacks_tokens
from evenstep.plan.policies.even import Even
from evenstep.plan.policy import Policy

logger = logging.getLogger("evenstep")

_TOKENS = 32
"""Of each of the two samples."""
_APART = 0.1
"""What another document in the row may change of the logits, at most, as a share of what it changes
where both are one document: rounding, in 8-bit floats at worst."""
_EXTRA = 0.1
"""Computation that packing may add, at most, as a share of that of all layers."""
_FIELDS = {"input_ids", "labels", "attention_mask", "position_ids"}


class _Padded(Exception):
    """Says why batches are padded."""


@dataclass(frozen=True, kw_only=True)
class RowsFound:
    """What a trainer's collate function makes of a few rows."""

    packs: bool
    """It makes one row of several samples."""
    prepares: bool
    """The rows have no tokens before it."""
    media: bool
    """A row has images, or another of the media fields."""
    pair: list[list[int]] | None
    """Tokens of two samples with a label for each token and nothing else, to try the model on."""
    why: str
    """Why there is no `pair`."""


@dataclass(frozen=True, kw_only=True)
class RowsQuestion:
    """See `evenstep.loader.learning`."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any]

    def answer(self, run: Run) -> dict[str, Any]:
        """`RowsFound`, JSON-able."""
        (found,) = run(self._found, self.dataset, [None], 1)
        return asdict(found)

    def _found(self, dataset: Any, item: None) -> RowsFound:
        calls = few_rows(dataset)
        pair, why = None, ""
        try:
            pair = _pair(self.collate_fn, calls)
        except _Padded as reason:
            why = str(reason)
        return RowsFound(
            packs=_packs(self.collate_fn, calls),
            prepares=lacks_tokens(calls),
            media=any(_has_media(read) for read in calls),
            pair=pair,
            why=why,
        )


def choose_packing(
    trainer: Any,
    policy: Policy,
    packed: bool | None,
    collate_fn: Callable[[list[Any]], Any],
    found: RowsFound | None,
) -> tuple[Policy, Callable[[list[Any]], Any]]:
    """The policy, packed or not, and a collate function that fits it. All ranks call it.

    Args:
        packed: what the user said; None packs where the policy says so, or, of a padded `Even`,
            where the model keeps the documents of a row apart.
        collate_fn: the trainer's, or the user's.
        found: what it makes of a few rows; None where it is evenstep's own.

    Raises:
        ConfigurationError: the policy has no such form.
    """
    padded = policy if isinstance(policy, Even) and not policy.packed else None
    if packed is None and padded is not None and found is not None:
        # The parameters of a sharded model may be on rank 0 alone.
        packed, why = by_rank_0(lambda: _find(trainer, padded, found), ConfigurationError)
        level = logging.WARNING if packed and trainer.is_world_process_zero() else logging.INFO
        logger.log(level, "batches are %s: %s", "packed" if packed else "padded", why)
    if packed is not None and packed != policy.packed:
        if all(field.name != "packed" for field in fields(policy)):  # type: ignore[arg-type]
            raise ConfigurationError(
                f"packed={packed}, and {type(policy).__name__} has no such form; use Even, "
                "or leave packed out"
            )
        policy = replace(policy, packed=packed)  # type: ignore[type-var]
    if policy.packed and found is not None and not found.packs:
        collate_fn = PreparingCollator(collate_fn=collate_fn)
    return policy, collate_fn


def _find(trainer: Any, policy: Even, found: RowsFound) -> tuple[bool, str]:
    """Whether to pack, and why."""
    try:
        if policy.target_tokens is not None:
            raise _Padded("the policy has target_tokens, which are for padded groups")
        if found.packs:
            return True, "the collate function makes one row of its samples"
        if found.pair is None:
            raise _Padded(found.why)
        with keeping_random_state():
            return True, _reason(trainer, policy, found.pair)
    except _Padded as reason:
        return False, f"{reason}. even.install(..., packed=True) packs them"


def _pair(
    collate_fn: Callable[[list[Any]], Any], calls: Sequence[Callable[[], Any]]
) -> list[list[int]]:
    """The tokens of the two longest of some samples.

    Args:
        calls: that return rows.

    Raises:
        _Padded: such samples are not packed, whatever the model is.
    """
    try:
        rows = [read() for read in calls]
        alone = PreparingCollator(collate_fn=collate_fn, late=False, packed=True)
        samples = [alone.prepare(row) for row in rows]
        _check_samples(samples)
        alone.learned(rows)
    except _Padded:
        raise
    except Exception as error:  # what is wrong with a sample, the loader says
        raise _Padded(
            f"the collate function takes no rows one by one ({described(error)})"
        ) from None
    longest = sorted(samples, key=lambda sample: len(sample["input_ids"]))[-2:]
    return [sample["input_ids"][:_TOKENS].tolist() for sample in longest]


def _has_media(read: Callable[[], Any]) -> bool:
    try:
        return bool(towers_of(read()))
    except Exception:  # what is wrong with a sample, the loader says
        return False


def _reason(trainer: Any, policy: Even, pair: Sequence[list[int]]) -> str:
    """Why batches are packed.

    Raises:
        _Padded: they are not.
    """
    if not _keeps_apart(trainer, pair):
        return "the model keeps the documents of a row apart"
    config = trainer.model.config
    hidden = getattr(getattr(config, "get_text_config", lambda: config)(), "hidden_size", None)
    tokens = policy.limit.max_tokens
    extra = tokens / (6 * hidden) if hidden else float("inf")
    if extra > _EXTRA:
        raise _Padded(
            "the model keeps the documents of a row apart by a mask over all pairs of its tokens, "
            f"which takes {extra:.0%} more computation with rows of {tokens:,} tokens; "
            "with flash attention it takes none"
        )
    return f"the model keeps the documents of a row apart, for {extra:.0%} more computation"


def _check_samples(samples: Sequence[Mapping[str, Any]]) -> None:
    if len(samples) < 2:
        raise _Padded("the dataset shows no rows before training")
    for sample in samples:
        if any(name in sample for name in MEDIA_FIELDS):
            raise _Padded("samples have images")
        more = sorted(sample.keys() - _FIELDS)
        labels = sample.get("labels")
        if more or labels is None or labels.shape != sample["input_ids"].shape:
            raise _Padded(
                f"samples have the fields {more}"
                if more
                else "samples have no label for each token"
            )


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


def _keeps_apart(trainer: Any, tokens: Sequence[list[int]]) -> bool:
    """Whether a mask over all pairs of tokens keeps the documents of a row apart; False where the
    model needs none.

    Raises:
        _Padded: nothing keeps them apart, or the model cannot be tried.
    """
    model = trainer.model
    weights = next(model.parameters(), None)
    if trainer.is_deepspeed_enabled or weights is None or hasattr(weights, "full_tensor"):
        raise _Padded("the model is sharded, and could not be tried")
    if weights.device.type != trainer.args.device.type:
        raise _Padded(
            f"the model is not on its {trainer.args.device.type} yet, so it was not tried"
        )
    pair = [{"input_ids": torch.tensor(each)} for each in tokens]
    row = to_hugging_face(PackCollator()(pair))
    del row["labels"]
    merged, alone = row["input_ids"], pair[1]["input_ids"][None]
    kept = len(pair[1]["input_ids"])
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), trainer.accelerator.autocast():

            def logits(**inputs: Any) -> torch.Tensor:
                on_device = {
                    name: value.to(weights.device) if isinstance(value, torch.Tensor) else value
                    for name, value in inputs.items()
                }
                found: torch.Tensor = model(**on_device).logits[0, -kept:].double()
                return found

            watch = _MaskWatch(merged.shape[1])
            with watch:
                packed = logits(**row)
            wanted = logits(input_ids=alone, use_cache=False)
            leaked = logits(input_ids=merged, use_cache=False)
    except Exception as error:
        raise _Padded(f"the model takes no packed row ({described(error)})") from None
    finally:
        model.train(training)
    leak = float((leaked - wanted).norm())
    if not leak or float((packed - wanted).norm()) > _APART * leak:
        raise _Padded("the model lets the documents of a row see each other")
    return watch.seen


class _MaskWatch(TorchFunctionMode):
    """Whether attention is computed for all pairs of the tokens of a row."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.seen = False
        self._square = (tokens, tokens)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            self.seen = True
        elif func in (F.softmax, torch.softmax, torch.Tensor.softmax):
            self.seen |= tuple(result.shape[-2:]) == self._square
        return result
