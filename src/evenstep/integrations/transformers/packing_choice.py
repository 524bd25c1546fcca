"""Whether batches are packed: as the user says, or as the collate function makes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import transformers

from evenstep.batch.blank import towers_of
from evenstep.batch.joining import unbatch
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.trim import Trim
from evenstep.errors import ConfigurationError
from evenstep.loader.learning.probe import Run
from evenstep.loader.learning.rows import few_rows, lacks_tokens
from evenstep.plan.policies.even import Even
from evenstep.plan.policy import Policy


@dataclass(frozen=True, kw_only=True)
class RowsFound:
    """What a trainer's collate function makes of a few rows."""

    packs: bool
    """It makes one row of several samples."""
    prepares: bool
    """The rows have no tokens before it."""
    media: bool
    """A row has images, or another of the media fields."""


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
        return RowsFound(
            packs=_packs(self.collate_fn, calls),
            prepares=lacks_tokens(calls),
            media=any(_has_media(read) for read in calls),
        )


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
                f"transformers {transformers.__version__} lets the documents of a packed row see "
                f"each other under attention {attention!r}; use flash attention, transformers 5, "
                "or packed=False"
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
