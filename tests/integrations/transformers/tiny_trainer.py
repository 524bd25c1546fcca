"""A Trainer of a tiny Llama that tells which samples it was trained on, and with what gradients."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, Rank, run
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from update_checks import alone, gradient_of

import evenstep
from documents import VOCABULARY, Documents

POLICY = evenstep.Even(max_tokens=128)
WITHIN = 150.0  # seconds; a hang takes longer


@dataclass
class Seen:
    """What a rank's model saw, update by update."""

    samples: list[list[Any]] = field(default_factory=lambda: [[]])
    """Those with supervised tokens, of each update."""
    gradients: list[torch.Tensor] = field(default_factory=list)
    """Of each update, averaged over ranks."""
    sizes: list[list[int]] = field(default_factory=lambda: [[]])
    """Of the batches of each update, those that bear no loss included."""

    def flat(self) -> list[int]:
        return [identity for update in self.samples for identity in update]


class TellingLlama(LlamaForCausalLM):
    """Takes `identity` too. Its loss is a mean unless it is given `num_items_in_batch`."""

    def __init__(self, config: Any = None) -> None:
        torch.manual_seed(0)
        super().__init__(config or tiny_config())
        self.seen = Seen()

    def forward(self, input_ids=None, labels=None, identity=None, **others):  # type: ignore
        self.tell(labels, identity)
        return super().forward(input_ids=input_ids, labels=labels, **others)

    def tell(self, labels: torch.Tensor | None, identity: torch.Tensor | None) -> None:
        if self.training and identity is not None:
            # Without labels to tell by, what fills a short update repeats what it holds.
            counted = ~torch.isin(identity, torch.tensor(self.seen.samples[-1], dtype=torch.int64))
            if labels is not None:
                counted = (labels[:, 1:] != -100).any(1)
            self.seen.samples[-1] += identity[counted].tolist()
            self.seen.sizes[-1].append(len(identity))


class MeanLlama(TellingLlama):
    """Knows no `num_items_in_batch`: its loss is a mean over its tokens."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, identity=None):  # type: ignore
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, labels=labels, identity=identity
        )


# Trainer goes by the name where it smooths labels.
TellingLlama.__name__ = MeanLlama.__name__ = LlamaForCausalLM.__name__


class Witness(TrainerCallback):
    """Notes the gradient of every update, and where the next one begins."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.seen.gradients.append(gradient_of(others["model"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.seen.samples.append([])
        self.seen.sizes.append([])


class Stop(TrainerCallback):
    """Waits for its end in the middle of an epoch."""

    def __init__(self, rank: Rank, step: int) -> None:
        self.rank = rank
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            self.rank.say("there")
            time.sleep(WITHIN)


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )


def documents(count: int = 61) -> Documents:
    """Every one has a supervised token, so that each is told of."""
    return Documents(count, longest=64, prompts=True, seed=3)


def arguments(folder: Any, *, kind: Any = TrainingArguments, **options: Any) -> TrainingArguments:
    # transformers 4 leaves there what arguments before asked for.
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    return kind(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "learning_rate": 0.0,  # every gradient is that of the first parameters
            "max_grad_norm": 0.0,
            "num_train_epochs": 1,
            "optim": "sgd",
            **options,
        }
    )


def trl_arguments(kind: Any, folder: Any, **options: Any) -> Any:
    """As `arguments`, for TRL's trainers. Options that `kind` does not have are left out."""
    plain = arguments(folder).to_dict()
    names = "output_dir use_cpu report_to disable_tqdm logging_steps save_strategy learning_rate"
    settings = {name: plain[name] for name in (*names.split(), "max_grad_norm", "optim")}
    settings |= {"num_train_epochs": 1, "bf16": False, "gradient_checkpointing": False, **options}
    return kind(**{k: v for k, v in settings.items() if k in kind.__dataclass_fields__})


def make_trainer(
    folder: Any,
    *,
    model: TellingLlama | None = None,
    dataset: Any = None,
    cls: type = Trainer,
    extra: dict[str, Any] | None = None,
    witness: TrainerCallback | None = None,
    **options: Any,
) -> Trainer:
    """
    Args:
        extra: arguments of the trainer's class.
        witness: in place of the one that notes gradients before the optimizer steps.
        **options: training arguments.
    """
    model = TellingLlama() if model is None else model
    trainer = cls(
        model=model,
        args=arguments(folder, **options),
        train_dataset=documents() if dataset is None else dataset,
        data_collator=evenstep.PadCollator(),
        **(extra or {}),
    )
    trainer.add_callback(witness or Witness(model.seen))
    return trainer


def kill_and_resume(
    tmp_path: Path,
    train: Callable[..., Any],
    stop: int,
    *args: Any,
) -> tuple[Any, Any, Any]:
    """What rank 0 reports of a job of two ranks; of one that is killed after `stop` updates and
    goes on from its last checkpoint; and of one rank that goes on from there.

    Args:
        train: called with the rank, the folder, `stop` or None, and `args`.
    """

    def job_folder(name: str) -> Path:
        folder = tmp_path / f"job of {name}"
        folder.mkdir()
        return folder

    def ended(name: str, ranks: int) -> Any:
        job = job_folder(f"{name} on {ranks}")
        return run(train, ranks, tmp_path / name, None, *args, folder=job, within=WITHIN)[0]

    whole = ended("whole", 2)
    with Job(train, 2, tmp_path / "killed", stop, *args, folder=job_folder("stopped")) as job:
        for rank in (0, 1):
            job.heard(rank, "there", within=WITHIN)
        for rank in (0, 1):
            job.signal(rank, SIGKILL, children=True)
        job.join(30)
    shutil.copytree(tmp_path / "killed", tmp_path / "fewer")
    return whole, ended("killed", 2), ended("fewer", 1)


def last_checkpoint(folder: Path) -> bool:
    """What `train` is told, so that it goes on from the last checkpoint, if there is any."""
    return bool(list(folder.glob("checkpoint-*")))


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def check_updates(trainer: Trainer, model: TellingLlama, smoothing: float = 0.0) -> list[list[int]]:
    """Every document once; gradient and loss of each update are those of one batch.

    Returns:
        The documents of each update. The learning rate is 0.
    """
    updates = [update for update in together(gathered(model.seen)) if update]
    assert sorted(i for update in updates for i in update) == list(range(len(documents())))
    check_gradients(trainer, model, updates, smoothing)
    return updates


def check_gradients(
    trainer: Trainer, model: TellingLlama, updates: list[list[int]], smoothing: float = 0.0
) -> None:
    gradients = model.seen.gradients
    for update, gradient, loss in zip(updates, gradients, losses(trainer), strict=True):
        mean, expected = alone(model, documents(), update, smoothing)
        # Before transformers 5, four digits are logged.
        assert loss == pytest.approx(mean, rel=1e-5, abs=5.1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


def together(seen: list[Seen]) -> list[list[int]]:
    """Samples of each update, of all ranks."""
    updates = len(seen[0].samples)
    assert all(len(rank.samples) == updates for rank in seen), "ranks made unequal updates"
    return [sorted(i for rank in seen for i in rank.samples[u]) for u in range(updates)]


def gathered(own: Any) -> list[Any]:
    """What all ranks have, on each."""
    if not dist.is_initialized():
        return [own]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, own)
    return box


def tokenizer() -> Any:
    words = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, 64)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


def words_of() -> Any:
    """A tokenizer of texts."""
    made = tokenizer()
    made.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return made
