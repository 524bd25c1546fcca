"""TRL's trainers of preferences: pairs of sequences, losses that are means over pairs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    Seen,
    Witness,
    gathered,
    tiny_config,
    together,
    trl_arguments,
    words_of,
)
from transformers import LlamaForCausalLM, LlamaForSequenceClassification
from update_checks import gradient_of

import evenstep
from evenstep.integrations import transformers as even
from families import FAMILIES

datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl")
pytestmark = pytest.mark.integrations

N = 41
# Imported here: what they import leaves temporary folders behind.
CLASSES = {
    name: (getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config"))
    for name in ("DPO", "KTO", "Reward")
}
POLICY = evenstep.Even(max_tokens=192)
VISION = FAMILIES["Qwen2-VL"]


def texts(kind: str) -> Any:
    """Prompts and answers of very different lengths."""
    rng = np.random.default_rng(4)

    def words(number: int) -> str:
        return " ".join(f"w{n}" for n in rng.integers(2, 60, number))

    rows = []
    for number, (prompt, chosen, rejected) in enumerate(rng.integers(1, 24, (N, 3))):
        row: dict[str, Any] = {"prompt": words(prompt) + " "}
        if kind == "KTO":
            row |= {"completion": words(chosen), "label": number % 3 > 0}
        else:
            row |= {"chosen": words(chosen), "rejected": words(rejected)}
        rows.append(row)
    return datasets.Dataset.from_list(rows)


def pictures(kind: str) -> Any:
    """Answers about images, in pairs or with a label each."""
    rng = np.random.default_rng(4)
    rows = [VISION.row(number) for number in range(N)]

    def answer(row: Any) -> Any:
        text = f"{row['messages'][-1]['content'][0]['text']} " * int(rng.integers(1, 6))
        return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]

    columns: dict[str, Any] = {
        "images": [row["images"] for row in rows],
        "prompt": [row["messages"][:-1] for row in rows],
    }
    if kind.startswith("KTO"):
        columns |= {
            "completion": [answer(row) for row in rows],
            "label": [n % 3 > 0 for n in range(N)],
        }
    else:
        columns |= {name: [answer(row) for row in rows] for name in ("chosen", "rejected")}
    return datasets.Dataset.from_dict(columns)


def identity_of(row: Any) -> str:
    names = [name for name in sorted(row) if name.endswith("_ids")]
    own = ("prompt", "chosen", "rejected", "completion")
    return str([row[name] for name in names or (name for name in own if name in row)])


class Told:
    """Notes the samples of each batch, as the collate function was given them."""

    def __init__(self, collate_fn: Any, rows: list[dict[str, Any]]) -> None:
        self.collate_fn = collate_fn
        self.known = {identity_of(row): number for number, row in enumerate(rows)}

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        numbers = [self.known[identity_of(sample)] for sample in samples]
        return {**self.collate_fn(samples), "identity": torch.tensor(numbers)}


def make(kind: str, folder: Path, accumulate: int, **options: Any) -> tuple[Any, Seen]:
    torch.manual_seed(0)
    if kind == "Reward":
        config = tiny_config()
        config.num_labels, config.pad_token_id = 1, 0
        model: Any = LlamaForSequenceClassification(config)
    elif kind.endswith("vision"):
        model = VISION.model(0)
    else:
        model = LlamaForCausalLM(tiny_config())
    base, config_of = CLASSES[kind.partition(" ")[0]]
    seen = Seen()

    class Noting(base):  # type: ignore[misc,valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            identity = inputs.pop("identity", None)
            if self.model.training and identity is not None:
                # Fillers repeat a batch, and count for nothing.
                seen.samples[-1] += identity.tolist() if self.even.factor else []
            return super().compute_loss(model, inputs, *args, **kwargs)

    Noting.__name__ = base.__name__
    columns = {"remove_unused_columns": False, "dataset_kwargs": None}
    options = {"gradient_accumulation_steps": accumulate, **columns, **options}
    extra: dict[str, Any] = {}
    if kind != "Reward":
        extra["ref_model"] = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in extra["ref_model"].parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    trainer = Noting(
        model=model,
        args=trl_arguments(config_of, folder, **options),
        train_dataset=datasets.load_from_disk(str(folder / "pairs")),
        processing_class=VISION.processor() if kind.endswith("vision") else words_of(),
        **extra,
    )
    trainer.data_collator = Told(trainer.data_collator, list(trainer.train_dataset))
    trainer.add_callback(Witness(seen))
    return trainer, seen


def of_one_batch(trainer: Any, samples: list[int]) -> torch.Tensor:
    """The gradient of the trainer's own loss of one batch of the samples."""
    batch = trainer.data_collator.collate_fn([trainer.train_dataset[n] for n in samples])
    trainer.model.zero_grad()
    type(trainer).__mro__[2].compute_loss(trainer, trainer.model, batch).backward()
    gradient = gradient_of(trainer.model)
    trainer.model.zero_grad()
    return gradient


def train(rank: Rank, kind: str, folder: Any, accumulate: int, options: dict[str, Any]) -> None:
    as_rank(rank)
    trainer, seen = make(kind, folder, accumulate, **options)
    even.install(trainer, policy=evenstep.Even(2048) if kind.endswith("vision") else POLICY)
    trainer.train()
    updates = [update for update in together(gathered(seen)) if update]
    assert sorted(i for update in updates for i in update) == list(range(N))
    assert len(updates) > 1
    if rank.rank == 0:
        trainer.accelerator.gather = lambda values: values  # this rank alone computes
        for update, gradient in zip(updates, seen.gradients, strict=True):
            expected = of_one_batch(trainer, update)
            limit = 1e-5 * expected.abs().max()
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=limit)


CASES = [
    ("DPO", {}),
    ("DPO", {"loss_type": ["sigmoid", "ipo"], "loss_weights": [1.0, 0.3]}),
    ("DPO", {"precompute_ref_log_probs": True}),
    ("Reward", {}),
    ("KTO", {"loss_type": "apo_zero_unpaired"}),
    ("DPO vision", {"max_length": None}),
    ("KTO vision", {"loss_type": "apo_zero_unpaired", "max_length": None}),
]


@pytest.mark.parametrize(
    ("kind", "options", "world_size", "accumulate"),
    [*((*case, 2, 3) for case in CASES), (*CASES[0], 1, 3), (*CASES[4], 2, 1)],
)
def test_each_pair_once_and_the_gradient_of_one_batch(
    tmp_path, kind: str, options: dict[str, Any], world_size: int, accumulate: int
) -> None:
    pairs = pictures(kind) if kind.endswith("vision") else texts(kind)
    pairs.save_to_disk(str(tmp_path / "pairs"))  # ranks share what trainers map
    run(train, world_size, kind, tmp_path, accumulate, options, folder=tmp_path, within=150)
