"""A job that is killed in the middle of an epoch goes on where it was, by Trainer's own command."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import vision_trainer
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    WITHIN,
    Stop,
    documents,
    gathered,
    kill_and_resume,
    last_checkpoint,
    make_trainer,
    together,
)
from vision_rows import Rows

import evenstep
from evenstep.cost import FittedCost
from evenstep.integrations import transformers as even
from families import FAMILIES

pytestmark = pytest.mark.integrations
N = len(documents())
VISION_N = 41
SAVED = 2  # updates between checkpoints
PEAK = 1e-2  # learning rate
SIZED = {
    "policy": evenstep.Even(128, cost=FittedCost(per_group=2.0, per_token=1.0, per_pair=0.0)),
    "update_tokens": 256,
}
LOST = "LLaVA-NeXT"
"""Trainer alone does not restore its weights: it saves them under other names than it loads."""


CODE, EPOCH = 40, 60


def mixture() -> evenstep.Mixture:
    rows = [*map(documents().__getitem__, range(61))]
    return evenstep.Mixture(
        {"code": rows[:CODE], "chat": rows[CODE:]},
        {"code": 0.8, "chat": 0.2},
        samples_per_epoch=EPOCH,
        samples_per_step=20,
    )


def train(
    rank: Rank, folder: Path, stop: int | None, kind: str, options: dict[str, Any]
) -> dict[str, Any]:
    """
    Args:
        kind: "text", "mixture", a family of vision-language models, or "sized", where evenstep
            chooses how many batches an update has.
    """
    as_rank(rank)
    options = {
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": SAVED,
        "learning_rate": PEAK,
        **options,
    }
    installed: dict[str, Any] = SIZED if kind == "sized" else {"policy": POLICY}
    if kind in FAMILIES:
        trainer, seen = vision_trainer.make_trainer(
            folder, FAMILIES[kind], Rows(FAMILIES[kind], VISION_N), **options
        )
        installed = {"policy": evenstep.Even(max_tokens=512)}
    else:
        trainer = make_trainer(folder, dataset=mixture() if kind == "mixture" else None, **options)
        seen = trainer.model.seen
    if stop is not None:
        trainer.add_callback(Stop(rank, stop))
    even.install(trainer, **installed)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    history = trainer.state.log_history
    return {
        "updates": [update for update in together(gathered(seen)) if update],
        "parameters": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
        "epoch": trainer.state.epoch,
        "steps": trainer.state.global_step,
        "tokens": [e["tokens"] for e in history if "tokens" in e],
        "rates": [e["learning_rate"] for e in history if "loss" in e],
    }


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("text", {}),
        ("text", {"gradient_accumulation_steps": 3, "num_train_epochs": 6}),
        ("sized", {}),
        *((name, {}) for name in ("LLaVA-NeXT", "Idefics3")),
    ],
)
def test_killed_in_mid_epoch(tmp_path, kind: str, options: dict[str, Any]) -> None:
    whole, again, other = kill_and_resume(tmp_path, train, SAVED + 1, kind, options)
    assert (tmp_path / "killed" / f"checkpoint-{SAVED}" / "evenstep.json").exists()
    assert again["updates"] == whole["updates"][SAVED:]
    if kind != LOST:
        torch.testing.assert_close(again["parameters"], whole["parameters"], rtol=0, atol=0)
    for name in ("epoch", "steps", "tokens", "rates"):
        assert again[name] == whole[name], name

    count = VISION_N if kind in FAMILIES else N
    rest = [identity for update in other["updates"] for identity in update]
    before = [identity for update in whole["updates"][:SAVED] for identity in update]
    epochs = options.get("num_train_epochs", 2)
    assert sorted(before + rest) == sorted(epochs * list(range(count)))
    done = len(before) % count
    assert set(rest[: count - done]) == set(range(count)) - set(before[len(before) - done :])
    assert other["epoch"] == float(epochs)
    # The rate of an update is that of the share of samples trained on before it.
    for job, begun in ((whole, []), (other, whole["updates"][:SAVED])):
        done = accumulate(map(len, [*begun, *job["updates"]][:-1]), initial=0)
        rates = [PEAK * (1 - each / (epochs * count)) for each in done]
        assert job["rates"] == pytest.approx(rates, rel=1e-9)


def test_a_checkpoint_of_the_end_of_an_epoch(tmp_path) -> None:
    """By epochs; and where the end of training is a later one than before, or the same."""

    def ended(number: int, epochs: int) -> Any:
        (tmp_path / str(number)).mkdir()
        arguments = (None, "text", {"save_strategy": "epoch", "num_train_epochs": epochs})
        folders = {"folder": tmp_path / str(number), "within": WITHIN}
        return run(train, 2, tmp_path / "run", *arguments, **folders)[0]

    first, more, done = ended(1, 1), ended(2, 2), ended(3, 2)
    assert sorted(i for update in first["updates"] for i in update) == list(range(N))
    assert sorted(i for update in more["updates"] for i in update) == list(range(N))
    assert more["epoch"] == done["epoch"] == 2.0
    assert not done["updates"]


def test_a_torn_checkpoint_is_passed_over(tmp_path, caplog) -> None:
    options: dict[str, Any] = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    even.install(make_trainer(tmp_path, **options), policy=POLICY).train()
    (tmp_path / "checkpoint-8" / "trainer_state.json").unlink()
    again = even.install(make_trainer(tmp_path, **options), policy=POLICY)
    again.train(resume_from_checkpoint=True)
    assert "checkpoint-8 was not saved to its end" in caplog.text
    assert len([update for update in again.model.seen.samples if update]) == 4


def drawn(epochs: int) -> Counter[int]:
    """What evenstep's own loader draws of the same mixture."""
    loader = evenstep.DataLoader(mixture(), policy=POLICY, shuffle=True, seed=42, group="local")
    seen = [batch["identity"].tolist() for _ in range(epochs) for batch, _ in loader.steps()]
    loader.close()
    return Counter(identity for batch in seen for identity in batch)


def test_a_killed_trainer_resumes_its_mixture_on_as_many_and_on_fewer_ranks(tmp_path: Path) -> None:
    jobs = kill_and_resume(tmp_path, train, SAVED + 1, "mixture", {})
    whole, again, fewer = (each["updates"] for each in jobs)
    samples = Counter(identity for update in whole for identity in update)
    assert samples == drawn(2)
    assert sum(samples[identity] for identity in range(CODE)) == 2 * 48
    assert again == whole[SAVED:]
    late = Counter(identity for update in whole[SAVED:] for identity in update)
    assert Counter(identity for update in fewer for identity in update) == late
