"""Trainer's own loader, taken over; what evenstep cannot work with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import default_data_collator

from evenstep.batch.images.processors import is_processor, user_processor
from evenstep.batch.labels import Supervised, labels_of
from evenstep.batch.measure import length_of, supervised_of
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.batch.prepare import PreparingCollator
from evenstep.data.mixed import Mixture
from evenstep.data.shares import METHOD, divides_itself, is_streamed, is_undivided, split_by_node
from evenstep.errors import ConfigurationError
from evenstep.integrations.job_facts import waits_at_updates
from evenstep.integrations.rank_values import by_rank_0, check_ranks, ranks
from evenstep.integrations.transformers.model_labels import (
    choose_packing,
    collated_alone,
    drawn_once,
    label_options,
    preference_options,
    rows_found,
    trains_preferences,
)
from evenstep.loader.arguments import resolve_start_method
from evenstep.loader.dataloader import DataLoader
from evenstep.loader.learning.probe import Probe, Run, ask
from evenstep.loader.options import SampleCounts
from evenstep.loader.row_order import ORDERS, given_order, of_one_rank
from evenstep.loader.torch_loader import wrap
from evenstep.plan.policy import Policy
from evenstep.plan.value_checks import AUTO

# Options that make batches of like lengths, and the values with which they do not: before
# transformers 5 and since.
_GROUPING = {"group_by_length": False, "train_sampling_strategy": "random"}
_NOT_GROUPING = (False, "random", "sequential")
_SHOWING = ("input_ids", "decoder_input_ids", "inputs_embeds")
"""Fields of a batch that tell how its labels are read."""


def check_arguments(trainer: Any, policy: Policy | None) -> None:
    """
    Raises:
        ConfigurationError: evenstep cannot train with the trainer's arguments.
    """
    args = trainer.args
    check_ranks("Trainer", args.world_size)
    if args.n_gpu > 1:
        raise ConfigurationError(
            f"this process has {args.n_gpu} GPUs, among which Trainer would split every batch; "
            f"start a process for each: torchrun --nproc-per-node {args.n_gpu}"
        )
    if args.auto_find_batch_size:
        raise ConfigurationError(
            "auto_find_batch_size tries smaller batches, which evenstep's policy does not make; "
            "set it to False, and find max_tokens as docs/tuning.md says"
        )
    parallel = {
        name: getattr(trainer, f"get_{name}_size", lambda: 1)() for name in ("tp", "cp", "sp")
    }
    if any(size > 1 for size in parallel.values()):
        raise ConfigurationError(
            f"tensor, context or sequence-parallel ranks ({parallel}) share batches, and evenstep "
            "gives each rank of a Trainer its own; use data-parallel ranks alone"
        )
    if policy is not None and (policy.micro_batches > 1 or policy.context_parallel > 1):
        raise ConfigurationError(
            f"{policy.name} makes micro-batches, or shards of them, where Trainer takes one batch "
            "at a time; use another policy, such as Even"
        )


@contextmanager
def taking_over(trainer: Any, *, training: bool = True) -> Iterator[None]:
    """While Trainer makes a loader: has it not sharded by Accelerate, nor sorted by length; that of
    `training` over this rank's share of an iterable dataset."""
    args, accelerator, dataset = trainer.args, trainer.accelerator, trainer.train_dataset
    given = {name: getattr(args, name) for name in _GROUPING if hasattr(args, name)}
    for name, value in given.items():
        if value not in _NOT_GROUPING:
            warnings.warn(
                f"{name}={value!r} is ignored: evenstep's policy decides what is in a batch",
                stacklevel=2,
            )
            setattr(args, name, _GROUPING[name])
    if training and isinstance(dataset, IterableDataset):
        trainer.train_dataset = share_of_rank(dataset, *ranks())
    accelerator.prepare = lambda *objects, **_: objects if len(objects) > 1 else objects[0]
    try:
        yield
    finally:
        del accelerator.prepare
        trainer.train_dataset = dataset
        for name, value in given.items():
            setattr(args, name, value)


def make_loader(
    trainer: Any,
    theirs: Any,
    policy: Policy | None,
    packed: bool | None,
    options: Mapping[str, Any],
) -> DataLoader:
    """evenstep's loader in place of the trainer's.

    Args:
        packed: see `choose_packing`.
        theirs: what the trainer's `get_train_dataloader` returned.

    Raises:
        ConfigurationError: the two contradict each other, or an option is wrong.
    """
    updates = trainer.args.gradient_accumulation_steps
    if isinstance(theirs, DataLoader):
        if policy is not None or packed is not None or options:
            raise ConfigurationError(
                "get_train_dataloader returns an evenstep.DataLoader, which has a policy and "
                "options; install the trainer without any"
            )
        _check_deepspeed(trainer, theirs.update_tokens)
        if theirs.update_tokens is None and theirs.accumulate != updates:
            raise ConfigurationError(
                f"the loader has accumulate={theirs.accumulate}, and the trainer "
                f"gradient_accumulation_steps={updates}; make them equal"
            )
        check_arguments(trainer, theirs.policy)
        return theirs
    if policy is None:
        raise ConfigurationError(
            "no policy decides what is in a batch; install the trainer with one, such as "
            "policy=evenstep.Even(max_tokens=16_384)"
        )
    args = trainer.args
    options = label_options(trainer, options)
    own = _pads(theirs.collate_fn) if policy.needs_lengths else theirs.collate_fn
    given = drawn_once(trainer, options.get("collate_fn", own))
    if packed is None and not policy.packed and options.get("labels") == "every":
        packed = False  # packed rows are for models that shift labels
    processor = getattr(trainer, "processing_class", None)
    processor = processor if is_processor(processor) else None
    preferences, found = trains_preferences(trainer), None
    if preferences:
        collate_fn = given
        packs = bool(packed or policy.packed)
        options = {**preference_options(trainer, given, packed=packs), **options}
    else:
        ours = isinstance(given, (PackCollator, PadCollator, PreparingCollator))
        if not ours or (processor is not None and not isinstance(given, PreparingCollator)):
            found = _asked(theirs, options, partial(rows_found, theirs.dataset, given))
        policy, collate_fn = choose_packing(trainer, policy, packed, given, None if ours else found)
    options = {**options, "collate_fn": collate_fn}
    taken: dict[str, Any] = {
        "seed": args.seed if args.data_seed is None else args.data_seed,
        **_update_of(trainer, options),
    }
    counts = SampleCounts.of(options.get("length_fn"))
    prepares = found is not None and found.prepares and not ours and counts.tokens is None
    if prepares or isinstance(collate_fn, PreparingCollator):
        if not isinstance(collate_fn, PreparingCollator):
            collate_fn = PreparingCollator(collate_fn=collate_fn)
        if collate_fn.config is None:
            collate_fn = replace(collate_fn, config=getattr(trainer.model, "config", None))
        if collate_fn.processor is None and user_processor(collate_fn.collate_fn) is None:
            collate_fn = replace(collate_fn, processor=processor)
        options = {**options, "collate_fn": collate_fn}
    elif not preferences:
        if counts.supervised is None:
            counts = replace(counts, supervised=SupervisedTokens(collate_fn))
        options = {**options, "length_fn": counts}
        if processor is not None and found is not None and found.media:
            options = {"blank": processor, **options}
    other = isinstance(theirs.dataset, IterableDataset) or options.keys() & set(ORDERS)
    if not other and (sampler := given_order(theirs).get("sampler")) is not None:
        # It draws for the whole job: Accelerate would deal its batches to the ranks.
        taken["shard_sampler"] = not of_one_rank(sampler)
    loader = wrap(theirs, policy=policy, **{**taken, **options})
    if waits_at_updates(trainer.accelerator, [trainer.model]):
        loader.take_sync()
    return loader


def _asked(theirs: Any, options: Mapping[str, Any], question: Callable[[Run], Any]) -> Any:
    """The answer to a question about the trainer's samples, as rank 0 finds it. All ranks call
    it."""
    probe = Probe(
        question=question,
        num_workers=options.get("num_workers", theirs.num_workers),
        worker_init_fn=theirs.worker_init_fn,
        start_method=resolve_start_method(theirs.multiprocessing_context),
        timeout=theirs.timeout,
    )
    return by_rank_0(lambda: ask(probe), ConfigurationError)


def _update_of(trainer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What decides how many batches an update has."""
    steps = trainer.args.gradient_accumulation_steps
    asked = options.get("update_tokens")
    _check_deepspeed(trainer, asked)
    if asked is not None:
        return {}
    if "accumulate" not in options and steps == 1 and not trainer.is_deepspeed_enabled:
        return {"update_tokens": AUTO}
    return {"accumulate": steps}


def _check_deepspeed(trainer: Any, update_tokens: int | str | None) -> None:
    """
    Raises:
        ConfigurationError: `update_tokens` with DeepSpeed, which has a number of steps already.
    """
    if update_tokens is not None and trainer.is_deepspeed_enabled:
        raise ConfigurationError(
            f"update_tokens={update_tokens} is not for DeepSpeed; set gradient_accumulation_steps"
            f"={trainer.args.gradient_accumulation_steps} instead"
        )


def _pads(collate_fn: Any) -> Any:
    """The collate function; in place of transformers' default, which takes rows of one length
    alone, one that pads."""
    if collate_fn is default_data_collator:
        return PadCollator()
    if getattr(collate_fn, "data_collator", None) is default_data_collator:  # drops columns
        collate_fn = copy.copy(collate_fn)
        collate_fn.data_collator = PadCollator()
    return collate_fn


@dataclass(frozen=True)
class SupervisedTokens:
    """Counts the supervised tokens of a sample in what the collate function makes of it alone:
    many collate functions make the labels."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> Supervised:
        batch = collated_alone(self.collate_fn, sample)
        labels = labels_of(batch) if isinstance(batch, Mapping) else None
        if labels is None:
            return supervised_of(sample, length_of(sample))
        row = {name: batch[name][0] for name in _SHOWING if name in batch}
        return supervised_of({**row, "labels": labels[0]}, None)


class RankShare(IterableDataset[Any]):
    """Every W-th sample: Trainer's iterable datasets yield all samples on all W ranks."""

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size

    def set_epoch(self, epoch: int) -> None:
        """All ranks draw one order, as of the shares that Trainer makes."""
        set_epoch = getattr(self._dataset, "set_epoch", None)
        generator = getattr(self._dataset, "generator", None)
        if set_epoch is not None:
            set_epoch(epoch)
        elif isinstance(generator, torch.Generator):
            generator.manual_seed(epoch)

    def __iter__(self) -> Iterator[Any]:
        for number, sample in enumerate(self._dataset):
            if number % self._world_size == self._rank:
                yield sample


def share_of_rank(dataset: Any, rank: int, world_size: int, *, mixed: bool = False) -> Any:
    """The rank's share of an iterable dataset, where the loader does not deal it.

    Args:
        mixed: it is one of a mixture, of which the loader deals none.

    Raises:
        ConfigurationError: the dataset has a state, which a share of it cannot go back to.
    """
    if world_size == 1 or (divides_itself(dataset) and not (mixed and hasattr(dataset, METHOD))):
        return dataset
    if isinstance(dataset, Mixture):
        return dataset.over(lambda each: share_of_rank(each, rank, world_size, mixed=True))
    if is_streamed(dataset):
        return split_by_node(dataset, rank, world_size) if is_undivided(dataset) else dataset
    if hasattr(dataset, "state_dict"):
        raise ConfigurationError(
            f"{type(dataset).__name__} has a state; yield this rank's share, and return "
            "evenstep.DataLoader(dataset, ...) from the trainer's get_train_dataloader"
        )
    return RankShare(dataset, rank, world_size)
