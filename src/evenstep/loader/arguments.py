"""What `DataLoader` refuses before anything is started, and what its defaults stand for.

It refuses trainers that iterate a loader without its integration, too, and says which line to
write. Such a trainer would train without an error, but with unscaled losses, with updates that end
at other steps, and with checkpoints that do not hold the position in the data.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any

import torch
from torch.utils.data import BatchSampler

from evenstep.arrays import rounded_up
from evenstep.batch.blank import ROW, Blank, BlankRow
from evenstep.batch.columns import TOKENS
from evenstep.batch.images.processors import is_processor
from evenstep.batch.labels import MAPPINGS
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import DefaultCollator, PadCollator, padded_multiple
from evenstep.batch.prepare import PreparingCollator
from evenstep.batch.smallest_media import blank_of_sample
from evenstep.batch.trim import Trim
from evenstep.data.mixed import Mixture
from evenstep.errors import ConfigurationError, WrongTypeError
from evenstep.plan.groups import PaddedTo
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy, check_policy
from evenstep.plan.value_checks import check_at_least, shorten

_OURS = (PadCollator, PackCollator, DefaultCollator, PreparingCollator)


def check_group(group: Any) -> None:
    if isinstance(group, str) and group != "local":
        raise ConfigurationError(f'group={group!r} must be a process group, None or "local"')


def check_context_parallel(policy: Policy, loss_scaling: str) -> None:
    """Refuses loss scaling that has no meaning for shards of micro-batches."""
    if policy.context_parallel > 1 and loss_scaling not in ("token", "none"):
        raise ConfigurationError(
            f"loss_scaling={loss_scaling!r} weights whole samples, and with context_parallel="
            f"{policy.context_parallel} a rank holds parts of them; use 'token', or 'none' where "
            "the trainer divides by the tokens of all ranks"
        )


def check_padded_to(policy: Policy, padded_to: PaddedTo) -> None:
    """Refuses a limit that rows would exceed by their padding."""
    multiple = padded_to.rows
    if policy.limit is not None and (most := policy.limit.max_tokens) % multiple:
        raise ConfigurationError(
            f"rows of up to max_tokens={most} would be longer with pad_to_multiple_of={multiple}; "
            f"use max_tokens={rounded_up(most, multiple)}, or another multiple"
        )


def check_workers(num_workers: int, **needing: Any) -> None:
    """
    Args:
        needing: arguments that mean nothing without workers.
    """
    check_at_least(0, num_workers=num_workers)
    for name, value in needing.items():
        if value and not num_workers:
            raise ConfigurationError(f"{name}={value!r} needs num_workers of at least 1")


def check_order(
    dataset: Any, *, iterable: bool, shuffle: bool, sampler: Any, shard_sampler: bool
) -> None:
    """Refuses an order that the dataset does not have or that is given twice."""
    if iterable and (shuffle or sampler is not None):
        raise ConfigurationError(
            "an iterable dataset gives its own order: leave out shuffle and sampler, and "
            "shuffle in the dataset"
        )
    if isinstance(dataset, Mixture) and sampler is not None:
        raise ConfigurationError(
            f"a Mixture gives the order of its samples, and here is a sampler, {sampler!r:.80}; "
            "leave it out, and pass shuffle=True to shuffle each dataset of the mixture"
        )
    if sampler is not None and shuffle:
        raise ConfigurationError("sampler gives the order, so shuffle=True contradicts it")
    if shard_sampler and sampler is None:
        raise ConfigurationError("shard_sampler=True needs a sampler")
    if isinstance(sampler, BatchSampler):
        raise list_as_index(f"a {type(sampler).__name__}")
    if isinstance(sampler, (list, tuple)) and sampler:
        check_index(sampler[0])
    if isinstance(dataset, Mapping) and any(isinstance(name, str) for name in dataset):
        raise WrongTypeError(
            f"dataset is a {type(dataset).__name__} of {shorten(list(dataset))}, and samples are "
            "read by number; pass one of its values, or, where they are datasets, "
            "evenstep.Mixture(dataset, weights={name: share, ...})"
        )
    if not iterable and not hasattr(dataset, "__getitem__"):
        raise ConfigurationError(
            f"dataset of type {type(dataset).__name__} has no __getitem__ and is not a "
            "torch.utils.data.IterableDataset; it must be one or the other"
        )
    if not iterable and sampler is None and not hasattr(dataset, "__len__"):
        raise ConfigurationError("a map-style dataset without __len__ needs a sampler")


def check_index(index: Any) -> None:
    """
    Raises:
        ConfigurationError: a sampler yields several rows as if they were one.
    """
    if isinstance(index, list) or getattr(index, "ndim", 0) > 0:
        raise list_as_index(f"{index!r:.80}")


def list_as_index(given: str) -> ConfigurationError:
    return ConfigurationError(
        f"sampler= yields the indices of single rows, and here is {given}; pass lists of indices "
        "as batch_sampler=, and a policy=. Where the dataset takes several numbers for one sample, "
        "yield them as a tuple"
    )


def check_in_order(in_order: bool) -> None:
    if not in_order:
        raise ConfigurationError(
            "in_order=False would make batches depend on timing, and evenstep's come in one order "
            "on all ranks; leave it out"
        )


def resolve_policy(policy: Any, batch_size: int | None, drop_last: bool) -> Policy:
    if policy is not None and batch_size is not None:
        raise ConfigurationError(
            f"batch_size={batch_size} contradicts policy={policy!r}, which decides how many "
            "samples a batch has; leave batch_size out, or use "
            "policy=evenstep.FixedBatch(batch_size)"
        )
    if batch_size is not None:
        return FixedBatch(batch_size, drop_last=drop_last)
    return check_policy(policy, "batch_size=...")


def resolve_collate(policy: Policy, collate_fn: Callable[[list[Any]], Any] | None) -> Any:
    if isinstance(collate_fn, PreparingCollator):
        return replace(collate_fn, packed=policy.packed)
    if collate_fn is None and policy.packed:
        return PackCollator()
    if collate_fn is None:
        return PadCollator() if policy.needs_lengths else DefaultCollator()
    if policy.packed and isinstance(collate_fn, PadCollator):
        raise ConfigurationError(
            f"{type(policy).__name__} forms groups that fit in memory without padding, and "
            "PadCollator would pad them; use evenstep.PackCollator, or packed=False"
        )
    return collate_fn


def resolve_padded_to(policy: Policy, collate_fn: Any) -> PaddedTo:
    """The multiples that a collate function pads to, as far as it shows them."""
    multiple = padded_multiple(collate_fn) or 1
    if not policy.packed:
        return PaddedTo(samples=multiple)
    documents = getattr(collate_fn, "pad_documents_to_multiple_of", None) or 1
    return PaddedTo(samples=documents, rows=multiple)


def resolve_trim(policy: Policy, collate_fn: Any) -> Trim | None:
    """Cuts padding off samples where evenstep collates them, or they are to be packed; others a
    function of the user's may want as they are."""
    ours = isinstance(collate_fn, _OURS)
    if not (ours or policy.packed):
        return None
    given = ours and not isinstance(collate_fn, DefaultCollator)
    collator = collate_fn if given else PadCollator()
    return Trim(frozenset(collator.media_fields), packed=policy.packed)


def resolve_blank(blank: Any, collate_fn: Any) -> Any:
    """
    Args:
        blank: a sample, a row, a processor, False, or None for that of `collate_fn`.

    Returns:
        A `Blank`, a `BlankRow`, False or None; or the processor, which is asked for its blank where
        a few samples are tried.
    """
    if blank is None:
        blank = getattr(collate_fn, "blank", None)
    if blank is None or blank is False or isinstance(blank, BlankRow):
        return blank
    again = getattr(collate_fn, "again", False)
    if again:
        check_blank_of_rows(blank)
    if isinstance(blank, Blank) or is_processor(blank):
        return blank
    media = getattr(collate_fn, "media_fields", MEDIA_FIELDS)
    if again or (
        not isinstance(collate_fn, _OURS) and isinstance(blank, MAPPINGS) and TOKENS not in blank
    ):
        return BlankRow({ROW: blank} if again else blank, media)
    return blank_of_sample(blank, media=media)


def check_blank_of_rows(blank: Any) -> None:
    """Refuses a blank for samples, where a collate function makes batches of rows."""
    if isinstance(blank, Blank) or is_processor(blank):
        raise ConfigurationError(
            f"blank= is a {type(blank).__name__}, and collate_fn collates rows by itself "
            "(again=True); pass one of the dataset's rows, with a small image"
        )


def resolve_seed(seed: int, generator: torch.Generator | None) -> int:
    if generator is None:
        return seed
    if seed:
        raise ConfigurationError(
            f"seed={seed} contradicts a generator, whose initial seed it is; pass one of them"
        )
    return int(generator.initial_seed())


def resolve_start_method(context: Any) -> str | None:
    if context is None:
        return None
    if isinstance(context, BaseContext):
        return str(context.get_start_method())
    known = multiprocessing.get_all_start_methods()
    if context not in known:
        kind = ConfigurationError if isinstance(context, str) else WrongTypeError
        raise kind(
            f"multiprocessing_context={context!r} must be one of {known} on {sys.platform}, or a "
            "context of multiprocessing"
        )
    return str(context)


_LIGHTNING = (
    "from evenstep.integrations import lightning as even; even.fit(trainer, module, loader); a "
    "loader of a module, or in a list or dictionary, is even.loader(loader)"
)
_LINES = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": (
        "from evenstep.integrations import transformers as even; trainer = even.install(trainer)"
    ),
}
_ACCELERATE = (
    "from evenstep.integrations import accelerate as even; "
    "model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)"
)


def refuse_trainers(frame: FrameType | None) -> None:
    """
    Args:
        frame: of the code that iterates a loader, or asks for its length.

    Raises:
        ConfigurationError: it is a trainer's own.
    """
    module = frame.f_globals.get("__name__", "") if frame is not None else ""
    trainer = module.partition(".")[0]
    if trainer in _LINES:
        raise ConfigurationError(
            f"{trainer} was given an evenstep.DataLoader as it is, and would neither scale its "
            "losses nor leave out what is repeated where a rank has no samples left; write: "
            f"{_LINES[trainer]}"
        )


def check_caller(frame: FrameType | None) -> None:
    """`refuse_trainers` for code that iterates a loader, and a warning where an Accelerator is in
    use."""
    refuse_trainers(frame)
    # Accelerate returns a loader that is not torch's unchanged, and the user's code iterates it.
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.is_initialized():
        warnings.warn(
            "an Accelerator is in use, and this evenstep.DataLoader was not prepared for it: it "
            f"would miss the end of short updates, devices and checkpoints; write: {_ACCELERATE}. "
            "A loop that does all of it itself iterates loader.steps()",
            stacklevel=3,
        )
