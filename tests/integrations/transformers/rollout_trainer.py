"""TRL's trainers that generate, with a tiny random Llama and a rule as the reward. They tell what
they were trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from datasets import Dataset
from tiny_trainer import Seen, Witness, tiny_config, trl_arguments, words_of
from transformers import LlamaForCausalLM

# Imported here: what they import leaves temporary folders behind.
CLASSES = {
    name: (getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config"))
    for name in ("GRPO", "RLOO")
}
LONGEST = 80  # tokens of a completion
PROMPT = 12  # tokens of the longest prompt


def take(seen: Seen, inputs: dict[str, Any]) -> None:
    """Notes all that belongs to each rollout, without padding; and tokens, with their padding."""
    prompt, answer = inputs["prompt_mask"].bool(), inputs["completion_mask"].bool()
    seen.sizes[-1].append(prompt.numel() + answer.numel())
    for n in range(len(prompt)):
        row = []
        for name in sorted(inputs):
            value = inputs[name]
            if value.ndim == 2:
                mask = prompt if name.startswith("prompt_") else answer
                row.append((name, tuple(value[n][mask[n]].tolist())))
            elif value.ndim == 1:
                row.append((name, value[n].item()))
        seen.samples[-1].append(tuple(row))


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
                take(self.seen, inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    Noting.__name__ = base.__name__
    words = words_of()
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
    trainer.seen = Seen()
    trainer.add_callback(Witness(trainer.seen))
    return trainer
