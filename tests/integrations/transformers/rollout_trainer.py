"""TRL's trainers that generate, with a tiny random Llama and a rule as the reward. They tell what
they were trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from tiny_trainer import tiny_config, tokenizer, trl_arguments
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM, TrainerCallback

# Imported here: what they import leaves temporary folders behind.
CLASSES = {
    name: (getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config"))
    for name in ("GRPO", "RLOO")
}
LONGEST = 80  # tokens of a completion
PROMPT = 12  # tokens of the longest prompt


@dataclass
class Rollouts:
    """What a rank's loss was taken of, update by update."""

    gradients: list[torch.Tensor] = field(default_factory=list)
    """Of each update, averaged over ranks."""
    rows: list[list[tuple[Any, ...]]] = field(default_factory=lambda: [[]])
    """Of each update: all that belongs to a rollout, without padding."""
    tokens: list[list[int]] = field(default_factory=lambda: [[]])
    """Of each update: those of each micro-batch, with its padding."""

    def take(self, inputs: dict[str, Any]) -> None:
        prompt, answer = inputs["prompt_mask"].bool(), inputs["completion_mask"].bool()
        self.tokens[-1].append(prompt.numel() + answer.numel())
        for n in range(len(prompt)):
            row = []
            for name in sorted(inputs):
                value = inputs[name]
                if value.ndim == 2:
                    mask = prompt if name.startswith("prompt_") else answer
                    row.append((name, tuple(value[n][mask[n]].tolist())))
                elif value.ndim == 1:
                    row.append((name, value[n].item()))
            self.rows[-1].append(tuple(row))


class Witness(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        gradients = [p.grad for p in self.trainer.model.parameters()]
        whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]
        self.trainer.seen.gradients.append(torch.cat([g.flatten().clone() for g in whole]))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.seen.rows.append([])
        self.trainer.seen.tokens.append([])


def save_model(folder: Path) -> None:
    """The reference model is read from where the policy came from."""
    torch.manual_seed(0)
    config = tiny_config()
    config.initializer_range = 0.5  # else all tokens are equally likely
    config.max_position_embeddings = PROMPT + LONGEST
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def prompts(count: int = 48) -> Dataset:
    rng = np.random.default_rng(4)
    return Dataset.from_list(
        [
            {"prompt": " ".join(f"w{n}" for n in rng.integers(2, 60, size))}
            for size in rng.integers(1, PROMPT + 1, count)
        ]
    )


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(sum(ids) % 7) for ids in completion_ids]


def make(kind: str, folder: Path, **options: Any) -> Any:
    """A trainer with a batch of 4 rollouts, 4 of each prompt."""
    base, config = CLASSES[kind]
    # RLOO takes the ratio of whole completions: in float32 its rounding alone is 1e-5.
    dtype = torch.float64 if kind == "RLOO" else torch.float32
    model = LlamaForCausalLM.from_pretrained(folder / "model", dtype=dtype)
    torch.manual_seed(1)
    with torch.no_grad():  # so that the reference model is another one
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))

    class Noting(base):  # type: ignore[misc,valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                self.seen.take(inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    Noting.__name__ = base.__name__
    words = tokenizer()
    words.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    words.padding_side = "left"
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": LONGEST,
        "max_steps": 2,
        **options,
    }
    trainer = Noting(
        model=model,
        args=trl_arguments(config, folder, **settings),
        train_dataset=prompts(),
        reward_funcs=reward,
        processing_class=words,
    )
    trainer.seen = Rollouts()
    trainer.add_callback(Witness(trainer))
    return trainer
