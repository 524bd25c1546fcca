"""An update that trains on nothing is worth a warning, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from torch.utils.data import Dataset

import evenstep

COUNT = 24


class Prompts(Dataset):
    """Samples of which some are cut off before anything is to be predicted."""

    def __init__(self, *cut: int) -> None:
        self.cut = cut

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        last = -100 if index in self.cut else 7
        return {"input_ids": [5, 6, 7], "labels": [-100, -100, last]}


def warnings_of(cut: Any, caplog: Any, **options: Any) -> list[str]:
    """Of two passes with two samples in each step."""
    caplog.clear()
    options = {"collate_fn": evenstep.PadCollator(), **options}
    loader = evenstep.DataLoader(Prompts(*cut), batch_size=2, **options)
    with caplog.at_level(logging.WARNING, "evenstep"):
        for _ in range(2):
            list(loader.steps())
    return [message for message in caplog.messages if "supervised" in message]


def test_an_update_without_supervised_tokens_is_named_once(caplog: Any) -> None:
    (message,) = warnings_of([6, 7, 10, 11], caplog)
    assert "update 3 of epoch 0" in message
    assert "[6, 7]" in message
    assert "StepInfo.global_supervised_tokens" in message


@pytest.mark.parametrize(
    ("cut", "options"),
    [
        ([6], {}),
        ([6, 7], {"accumulate": 2}),
        (range(COUNT), {"loss_scaling": "sample"}),
        (range(COUNT), {"loss_scaling": "none"}),
        ([], {}),
    ],
)
def test_there_is_none_where_something_counts(cut: Any, options: Any, caplog: Any) -> None:
    assert warnings_of(cut, caplog, **options) == []


def test_an_update_of_several_steps_is_one(caplog: Any) -> None:
    (message,) = warnings_of([4, 5, 6, 7], caplog, accumulate=2)
    assert "update 1 of epoch 0" in message
