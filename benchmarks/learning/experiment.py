"""The pieces of work of the benchmark, each of which runs in a process and is kept in a file.

A file's name has a digest of all that decides its content, the steps themselves included; so a
policy is trained again only if it plans differently than before.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning.plans import BASE, POLICIES, PlannedEpoch, Task, how_random
from benchmarks.learning.text import TokenizedText
from benchmarks.learning.train import Recipe, gradient, mean_loss, train
from evenstep.arrays import Int64Array
from evenstep.files import replacing

_NOISE_STEPS = 25
_NOISE_AT = 4  # gradients are taken after one of so many parts of the updates


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run and the steps that it made."""

    loss: float
    """Held-out, per predicted token."""
    policy: str
    """With its options."""
    steps: int
    composition: float
    imbalance: float


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One corpus, and what all policies are given."""

    text: TokenizedText
    recipe: Recipe
    samples: int
    per_step: int
    world_size: int
    policies: list[str]
    cache: Path

    def drawn(self, seed: int) -> Int64Array:
        """[samples] indices of the seed's training samples in the text."""
        return self.text.draw(self.samples, seed)

    def plan(self, policy: str, seed: int) -> PlannedEpoch:
        task = Task(
            lengths=self.text.tokens.lengths[self.drawn(seed)],
            world_size=self.world_size,
            per_step=self.per_step,
            seed=seed,
        )
        return POLICIES[policy](task)

    def file(self, kind: str, seed: int, plan: PlannedEpoch, ending: str) -> Path:
        decides = [self.text.digest, repr(self.recipe), self.samples, seed, plan.digest]
        digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
        return self.cache / f"{self.text.name}-{kind}-{seed}-{digest}.{ending}"


def run_of(experiment: Experiment, policy: str, seed: int) -> Run:
    """Trains under a policy, or takes the loss of an equal run."""
    plan, drawn = experiment.plan(policy, seed), experiment.drawn(seed)
    stored = experiment.file("run", seed, plan, "json")
    tokens = experiment.text.tokens
    if stored.is_file():
        loss = json.loads(stored.read_text())["loss"]
    else:
        model = experiment.recipe.model(seed)
        train(experiment.recipe, model, tokens, [drawn[step] for step in plan.steps])
        loss = mean_loss(model, tokens, np.arange(experiment.text.held_out))
    run = Run(
        loss=loss,
        policy=plan.policy,
        steps=len(plan.steps),
        composition=how_random(plan.steps, tokens.lengths[drawn]),
        imbalance=plan.imbalance,
    )
    _keep(stored, {"policy name": policy, **asdict(run)})
    return run


def prepare_noise(experiment: Experiment, seed: int) -> None:
    """Trains on fixed batches for a part of the updates, and keeps the weights and the gradient of
    all samples."""
    plan, drawn = experiment.plan(BASE, seed), experiment.drawn(seed)
    stored = experiment.file("gradient", seed, plan, "pt")
    if stored.is_file():
        return
    model, tokens = experiment.recipe.model(seed), experiment.text.tokens
    steps = [drawn[step] for step in plan.steps]
    train(experiment.recipe, model, tokens, steps, updates=len(steps) // _NOISE_AT)
    with replacing(stored) as partial:
        whole = gradient(model, tokens, drawn)
        torch.save({"model": model.state_dict(), "gradient": whole}, partial)


def noise_of(experiment: Experiment, policy: str, seed: int) -> float:
    """Mean cosine of the gradients of a policy's steps and that of all samples, after
    `prepare_noise`."""
    plan, drawn = experiment.plan(policy, seed), experiment.drawn(seed)
    stored = experiment.file("cosine", seed, plan, "json")
    if not stored.is_file():
        base = torch.load(experiment.file("gradient", seed, experiment.plan(BASE, seed), "pt"))
        model = experiment.recipe.model(seed)
        model.load_state_dict(base["model"])
        chosen = np.linspace(0, len(plan.steps) - 1, _NOISE_STEPS).round().astype(int)
        cosines = [
            torch.cosine_similarity(
                gradient(model, experiment.text.tokens, drawn[plan.steps[step]]).double(),
                base["gradient"].double(),
                dim=0,
            ).item()
            for step in chosen
        ]
        _keep(stored, {"policy name": policy, "cosines": cosines})
    return float(np.mean(json.loads(stored.read_text())["cosines"]))


def _keep(path: Path, values: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(json.dumps(values, indent=1) + "\n")
