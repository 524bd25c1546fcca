"""TRL's trainers of preferences: pairs of sequences, losses that are means over pairs."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    Stop,
    gathered,
    kill_and_resume,
    last_checkpoint,
    tiny_config,
    tokenizer,
    trl_arguments,
)
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, TrainerCallback

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


def words_of() -> Any:
    made = tokenizer()
    made.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return made


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


class Seen(TrainerCallback):
    def __init__(self, model: Any) -> None:
        self.model = model
        self.gradients: list[torch.Tensor] = []
        self.samples: list[list[int]] = [[]]
        self.batches: list[list[list[int]]] = [[]]
        """Samples of each batch of an update, negative where they count for nothing."""

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.gradients.append(
            torch.cat([p.grad.flatten().clone() for p in self.model.parameters()])
        )

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.samples.append([])
        self.batches.append([])


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
    seen = Seen(model)

    class Noting(base):  # type: ignore[misc,valid-type]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            identity = inputs.pop("identity", None)
            if self.model.training and identity is not None:
                # Fillers repeat a batch, and count for nothing.
                counts = 1 if self.even.factor else -1
                seen.samples[-1] += identity.tolist() if self.even.factor else []
                seen.batches[-1].append([counts * (number + 1) for number in identity.tolist()])
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
    trainer.add_callback(seen)
    return trainer, seen


def of_one_batch(trainer: Any, samples: list[int]) -> torch.Tensor:
    """The gradient of the trainer's own loss of one batch of the samples."""
    batch = trainer.data_collator.collate_fn([trainer.train_dataset[n] for n in samples])
    trainer.model.zero_grad()
    type(trainer).__mro__[2].compute_loss(trainer, trainer.model, batch).backward()
    gradient = torch.cat([p.grad.flatten().clone() for p in trainer.model.parameters()])
    trainer.model.zero_grad()
    return gradient


def train(rank: Rank, kind: str, folder: Any, accumulate: int, options: dict[str, Any]) -> None:
    as_rank(rank)
    trainer, seen = make(kind, folder, accumulate, **options)
    even.install(trainer, policy=evenstep.Even(2048) if kind.endswith("vision") else POLICY)
    trainer.train()
    everybody = gathered(seen.samples)  # type: ignore[arg-type]
    updates = [
        sorted(i for rank in everybody for i in rank[number])  # type: ignore[index]
        for number in range(len(seen.gradients))
    ]
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


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_each_pair_once_and_the_gradient_of_one_batch(
    tmp_path, kind: str, options: dict[str, Any], accumulate: int, world_size: int
) -> None:
    pairs = pictures(kind) if kind.endswith("vision") else texts(kind)
    pairs.save_to_disk(str(tmp_path / "pairs"))  # ranks share what trainers map
    run(train, world_size, kind, tmp_path, accumulate, options, folder=tmp_path, within=150)


def test_samples_that_a_batch_pairs_are_refused(tmp_path) -> None:
    pictures("KTO").save_to_disk(str(tmp_path / "pairs"))
    trainer, seen = make("KTO vision", tmp_path, 1, max_length=None)
    even.install(trainer, policy=evenstep.Even(2048))
    with pytest.raises(evenstep.ConfigurationError, match=r"pairs samples .*'apo_zero_unpaired'"):
        trainer.train()
    assert not seen.samples[-1]


def ratios(trainer: Any, number: int, completion: str) -> torch.Tensor:
    """Log-probability of a completion, over that of the reference."""
    row = trainer.train_dataset[number]
    prompt, answer = row["prompt_ids"], row[completion]
    tokens = torch.tensor([prompt + answer])
    scores = []
    for model in (trainer.model, trainer.ref_model):
        found = model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
        scores.append(found.gather(1, tokens[0, 1:, None])[len(prompt) - 1 :].sum())
    return scores[0] - scores[1].detach()


def kto(trainer: Any, ranks: list[list[list[int]]]) -> torch.Tensor:
    """The gradient of an update by the definition of the loss.

    Args:
        ranks: samples of each batch, of each rank, counted from 1.
    """
    loss, samples = torch.zeros(()), 0
    for batches in zip(*ranks, strict=True):
        with torch.no_grad():
            estimates = [
                torch.stack(
                    [ratios(trainer, abs(n) - 1, "KL_completion_ids") for n in batch]
                ).mean()
                for batch in batches
            ]
        kl = torch.stack(estimates).mean().clamp(min=0)
        for number in (n - 1 for batch in batches for n in batch if n > 0):
            reward = ratios(trainer, number, "completion_ids") - kl
            sign = 1 if trainer.train_dataset[number]["label"] else -1
            loss = loss + 1 - (sign * trainer.beta * reward).sigmoid()
            samples += 1
    trainer.model.zero_grad()
    (loss / samples).backward()
    return torch.cat([p.grad.flatten().clone() for p in trainer.model.parameters()])


def train_kto(rank: Rank, folder: Any, accumulate: int) -> list[str]:
    as_rank(rank)
    trainer, seen = make("KTO", folder, accumulate)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("evenstep").addHandler(handler)
    even.install(trainer, policy=POLICY)
    trainer.train()
    everybody: Any = gathered(seen.batches)  # type: ignore[arg-type]
    counted = [abs(n) for rank in everybody for update in rank for b in update for n in b if n > 0]
    assert sorted(counted) == list(range(1, N + 1))
    assert max(len(batch) for rank in everybody for update in rank for batch in update) > 2
    if rank.rank == 0:
        trainer.model.eval()
        for number, gradient in enumerate(seen.gradients):
            expected = kto(trainer, [batches[number] for batches in everybody])
            limit = 1e-5 * expected.abs().max()
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=limit)
    return said


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_estimate_of_kto_is_that_of_the_samples_of_each_step(tmp_path, world_size: int) -> None:
    texts("KTO").save_to_disk(str(tmp_path / "pairs"))
    said, *others = run(train_kto, world_size, tmp_path, 3, folder=tmp_path, within=150)
    assert any("loss_type kto is not a mean over samples alone" in message for message in said)
    assert not any("loss_type" in message for one in others for message in one)


SAVED = 3  # updates between checkpoints


def checkpointed(
    rank: Rank, folder: Path, stop: int | None, kind: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Trains from the last checkpoint in the folder, if there is one."""
    as_rank(rank)
    saving = {"save_strategy": "steps", "save_steps": SAVED, "learning_rate": 1e-2}
    trainer, seen = make(kind, folder, 1, **{**saving, "num_train_epochs": 2, **options})
    if stop is not None:
        trainer.add_callback(Stop(rank, stop))
    even.install(trainer, policy=POLICY)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    everybody = gathered(seen.samples)  # type: ignore[arg-type]
    updates = [sorted(i for each in rows for i in each) for rows in zip(*everybody, strict=True)]
    parameters = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return {"updates": [update for update in updates if update], "parameters": parameters}


@pytest.mark.parametrize(("kind", "options"), [CASES[0], CASES[2], CASES[3]])
def test_a_killed_job_resumes(tmp_path, kind: str, options: dict[str, Any]) -> None:
    def prepare(folder: Path) -> None:
        texts(kind).save_to_disk(str(folder / "pairs"))

    whole, again, fewer = kill_and_resume(
        tmp_path, checkpointed, SAVED + 2, kind, options, prepare=prepare
    )
    assert again["updates"] == whole["updates"][SAVED:]
    torch.testing.assert_close(again["parameters"], whole["parameters"], rtol=0, atol=0)
    trained = whole["updates"][:SAVED] + fewer["updates"]
    assert sorted(i for update in trained for i in update) == sorted(2 * list(range(N)))
