"""`too_long` on two real ranks: steps are equal, what is left comes once, and gradients are those
of one batch of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from ranks import Rank, run
from test_gradient import gradient, relative_error
from tiny_model import TinyModel

import evenstep
from documents import Documents

LIMIT, COUNT = 48, 40
CHOICES = ("skip", "truncate", "alone")
POLICIES = {
    "padded": evenstep.Even(LIMIT),
    "packed": evenstep.Even(LIMIT, packed=True),
    "fixed shares": evenstep.TokenBudget(LIMIT),
}


def train(rank: Rank) -> dict[tuple[str, str], Any]:
    found = {}
    for name, policy in POLICIES.items():
        for choice in CHOICES:
            longest = 256 if choice == "alone" else None
            loader = evenstep.DataLoader(
                Documents(COUNT, prompts=True),
                policy=policy,
                too_long=choice,
                shuffle=True,
                accumulate=1000,  # the epoch is one update
                memory=evenstep.Memory(buffer_size=16, longest=longest),
            )
            model, seen, steps = TinyModel(), [], []
            for batch, step in loader.steps():
                (model(**batch).loss * step.loss_scale).nan_to_num().backward()
                seen += step.indices
                steps.append((step.step, step.too_long, step.global_samples))
            found[name, choice] = gradient(model), seen, steps
    return found


def whole(choice: str) -> tuple[torch.Tensor, list[int]]:
    """The gradient of one batch of the samples that stay, and which they are."""
    data, samples = Documents(COUNT, prompts=True), []
    for index in range(COUNT):
        sample = data[index]
        if choice == "skip" and data.lengths[index] > LIMIT:
            continue
        end = LIMIT if choice == "truncate" else None
        cut = {name: sample[name][:end] for name in ("input_ids", "labels")}
        samples.append({**cut, "identity": index})
    model = TinyModel()
    model(**evenstep.PadCollator()(samples)).loss.backward()
    return gradient(model), [sample["identity"] for sample in samples]


def test_ranks_are_aligned_and_gradients_are_those_of_the_samples_that_stay(tmp_path: Path) -> None:
    first, second = run(train, 2, folder=tmp_path, within=120)
    long = int((Documents(COUNT).lengths > LIMIT).sum())
    for (policy, choice), (one, seen, steps) in first.items():
        other, theirs, same = second[policy, choice]
        assert steps == same
        truth, identities = whole(choice)
        repeated = policy == "fixed shares" and len(seen + theirs) > len({*seen, *theirs})
        assert {*seen, *theirs} == {*identities}
        if not repeated:
            assert sorted(seen + theirs) == identities
            assert relative_error((one + other) / 2, truth) < 1e-9, (policy, choice)
            assert steps[-1][1] == long
