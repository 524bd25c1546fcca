"""Runs a job on this rank as its user would, and notes the samples and the gradient of each
update."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import evenstep
from evenstep.batch import to_hugging_face
from evenstep.plan import Policy
from jobs.collates import collate_of
from jobs.contents import Contents, Wrong, fields_of
from jobs.forms import dataset_of, examples_of
from jobs.job import POLICIES, UPDATES, Job
from jobs.kinds import KINDS, PAD, shifted_loss


@cache
def model_of(kind: str) -> Any:
    """Is not trained, but computes gradients for any number of jobs."""
    return KINDS[kind].model()


@dataclass
class Update:
    samples: list[int] = field(default_factory=list)
    """Of this rank."""
    gradient: torch.Tensor | None = None
    """That this rank contributes to the mean over ranks."""


def length_of_both(sample: Any) -> int:
    """Of source and target."""
    names = ("input_ids", "labels")
    return sum(len(value) for name, value in fields_of(sample, names).items() if name in names)


def options_of(job: Job) -> dict[str, Any]:
    """Arguments of the loader that the job's kind needs."""
    kind = KINDS[job.kind]
    options: dict[str, Any] = dict(UPDATES[job.update])
    if "update_tokens" in options and job.update == "tokens":
        options["update_tokens"] *= kind.unit
    if kind.labeled == "own" and kind.padded and (job.form, job.policy) != ("row", "fixed batch"):
        options["length_fn"] = length_of_both
    if job.told:
        options["labels"] = job.reads
    if job.resumed and job.data == "iterable":
        options["faults"] = evenstep.Faults(replay=True)
    return options


def policy_of(job: Job) -> Policy:
    return POLICIES[job.policy](KINDS[job.kind].unit)


def train(job: Job, folder: Path) -> list[Update]:
    """
    Raises:
        Wrong: a batch does not hold what the dataset gave.
        EvenstepError: evenstep refuses the job.
    """
    # A trainer may leave something behind in a model, and a job that failed, gradients.
    model = KINDS[job.kind].model() if job.entry == "trainer" else model_of(job.kind)
    model.zero_grad(set_to_none=True)
    examples = examples_of(job.kind, job.labels, job.seed)
    contents = Contents(job, examples)
    if job.entry == "trainer":
        return _by_trainer(job, model, contents, folder)
    return _by_loop(job, model, contents)


# A loop of one's own


def loader_of(job: Job, model: nn.Module) -> evenstep.DataLoader:
    policy = policy_of(job)
    given: dict[str, Any] = {"collate_fn": collate_of(job, model), "num_workers": job.workers}
    if job.workers:
        given["multiprocessing_context"] = "fork"
    if job.data != "iterable":
        given["shuffle"] = job.shuffle
    dataset = dataset_of(job)
    if job.entry == "wrap":
        theirs = torch.utils.data.DataLoader(dataset, batch_size=4, **given)
        return evenstep.wrap(theirs, policy=policy, **options_of(job))
    return evenstep.DataLoader(dataset, policy=policy, **given, **options_of(job))


def _by_loop(job: Job, model: nn.Module, contents: Contents) -> list[Update]:
    kind = KINDS[job.kind]
    loss_of = shifted_loss if job.labels == "shifted" else kind.loss
    loader = loader_of(job, model)
    updates, resumed = [Update()], not job.resumed
    steps = loader.steps()
    try:
        while (given := next(steps, None)) is not None:
            batch, step = given
            parts = batch if step.loss_scales else [batch]
            scales = step.loss_scales or (step.loss_scale,)
            found: list[int] = []
            for part, scale in zip(parts, scales, strict=True):
                fields = fields_of(part, contents.names)
                found += [number for number, _ in contents(fields)]
                (loss_of(model, _for_model(job, model, fields)) * scale).backward()
            # What fills up a step comes last.
            updates[-1].samples += found[: step.samples]
            if step.indices is not None and tuple(found[: step.samples]) != step.indices:
                raise Wrong(f"samples {found} of a step that says {step.indices}")
            if step.ends_update:
                updates[-1].gradient = gradient_of(model)
                updates.append(Update())
                if not resumed:
                    state, resumed = json.dumps(loader.state_dict()), True
                    loader.close()
                    loader = loader_of(job, model)
                    loader.load_state_dict(json.loads(state))
                    steps = loader.steps()
    finally:
        loader.close()
    return updates[:-1]


def _for_model(job: Job, model: nn.Module, fields: dict[str, Any]) -> dict[str, Any]:
    """What the user's loop gives the model."""
    tokens = fields.get("input_ids")
    if job.label in fields:
        fields["labels"] = fields.pop(job.label)
    if job.call == "converted":
        fields = to_hugging_face(fields, model=model)
    closed = job.form in ("tuple", "bare")
    if closed and tokens is not None and not job.packed:
        # They have no place for the mask that padding needs.
        fields.setdefault("attention_mask", (tokens != PAD).long())
    return doubled(fields)


def doubled(value: Any) -> Any:
    """With floats of 64 bits, as the models have."""
    if isinstance(value, dict):
        return {name: doubled(each) for name, each in value.items()}
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if floats else value


def gradient_of(model: nn.Module) -> torch.Tensor:
    """Of all parameters, which is then forgotten."""
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()
    ]
    model.zero_grad(set_to_none=True)
    return torch.cat(parts)


# Hugging Face's Trainer


def _by_trainer(job: Job, model: Any, contents: Contents, folder: Path) -> list[Update]:
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from evenstep.integrations import transformers as even

    updates = [Update()]

    def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if module.training:  # not while evenstep tries whether it takes packed rows
            # What fills up an update has no labels.
            updates[-1].samples += [number for number, labelled in contents(kwargs) if labelled]
        return args, doubled(kwargs)

    class Witness(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **others: Any) -> None:
            updates[-1].gradient = gradient_of(model)
            updates.append(Update())

        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = True

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    options = options_of(job)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        learning_rate=0.0,
        max_grad_norm=0.0,
        max_steps=1000,  # estimating the steps of one epoch takes longer than training
        optim="sgd",
        ddp_find_unused_parameters=True,
        gradient_accumulation_steps=options.pop("accumulate", 1),
        dataloader_num_workers=job.workers,
        label_names=["labels"],
        remove_unused_columns=job.form != "row",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset_of(job),
        data_collator=collate_of(job, model),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Witness())
    policy = policy_of(job)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            even.install(trainer, policy=policy, **options).train()
        finally:
            handle.remove()
    return updates[:-1]
