"""`DataLoader(update_tokens=)`: the user fixes the update, the loader chooses its steps."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

import evenstep
from documents import Documents
from evenstep.batch import Composition
from evenstep.cost import FittedCost

N = 600
# As measured where groups of 90 tokens keep the accelerator busy.
COST = FittedCost(per_group=10.0, per_token=1.0, per_pair=0.0)
EVEN = evenstep.Even(1024, cost=COST)


def make_loader(**options: Any) -> evenstep.DataLoader:
    given: dict[str, Any] = {"policy": EVEN, "update_tokens": 2048, **options}
    return evenstep.DataLoader(Documents(N), shuffle=True, **given)


def updates_of(loader: evenstep.DataLoader) -> list[list[Any]]:
    """[updates][steps] (identities, step)."""
    updates: list[list[Any]] = [[]]
    for batch, step in loader.steps():
        updates[-1].append((batch["identity"].tolist(), step))
        if step.ends_update:
            updates.append([])
    return [each for each in updates if each]


def test_an_update_has_the_tokens_asked_for_in_several_groups() -> None:
    loader = make_loader()
    updates = updates_of(loader)
    assert loader.accumulate >= 8
    assert loader.policy.max_tokens == 1024
    assert loader.sized_policy.target_tokens < 1024
    tokens = [sum(step.tokens for _, step in update) for update in updates]
    assert np.mean(tokens[:-1]) == pytest.approx(2048, rel=0.15)
    assert sorted(i for update in updates for ids, _ in update for i in ids) == list(range(N))
    assert all(len(update) == loader.accumulate for update in updates[:-1])
    composition = Composition()
    for update in updates:
        for _, step in update:
            composition.add(step)
    assert composition.value > 0.95


@pytest.mark.parametrize("packed", [False, True])
def test_a_resumed_epoch_has_the_groups_that_would_have_followed(packed: bool) -> None:
    """What groups should have follows from how full those before were, also of other epochs."""
    policy = evenstep.Even(512, packed=packed)

    def passed(loader: evenstep.DataLoader) -> list[tuple[list[int], dict[str, Any]]]:
        return [(batch["identity"].tolist(), loader.state_dict()) for batch, _ in loader.steps()]

    loader = make_loader(policy=policy, update_tokens=1000)
    made = passed(loader) + passed(loader)
    targets = {tuple(state["epoch"].get("filled", [])) for _, state in made}
    assert len(targets) > 4
    assert loader.sized_policy.target_tokens < 512
    for place in range(3, len(made) - 1, len(made) // 5):
        again = make_loader(policy=policy, update_tokens=1000)
        again.load_state_dict(json.loads(json.dumps(made[place][1])))
        first = passed(again)
        assert [ids for ids, _ in first] == [
            ids for ids, state in made[place + 1 :][: len(first)]
        ], place


def test_updates_of_one_length_are_warned_of_once_and_mixed_ones_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "evenstep")
    updates_of(make_loader())
    updates_of(make_loader(policy=evenstep.FixedBatch(8), update_tokens=None))
    assert not [message for message in caplog.messages if "composition" in message]
    loader = make_loader(update_tokens=None, policy=evenstep.Even(512))
    for _ in range(2):
        updates_of(loader)
    said = [message for message in caplog.messages if "composition" in message]
    assert len(said) == 1
    assert "update_tokens=" in said[0]
    assert "packed=True" in said[0]


class Counted(Documents):
    """Counts how often a sample is read."""

    reads = 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "options",
    [
        {"update_tokens": None},
        {"update_tokens": "auto", "policy": evenstep.Even(1024, packed=True)},
        {"update_tokens": "auto", "policy": evenstep.TokenBudget(1024)},
        {"update_tokens": 4096, "policy": evenstep.SequencePacking(1024)},
    ],
)
def test_no_sample_is_read_where_lengths_change_nothing(options: dict[str, Any]) -> None:
    dataset = Counted(N)
    loader = evenstep.DataLoader(dataset, **{"policy": EVEN, **options})
    assert loader.accumulate == (4 if options["update_tokens"] == 4096 else 1)
    assert dataset.reads == 0
