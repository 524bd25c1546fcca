"""What all trainers share: releases, states of all ranks, an estimate of steps, values to log."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from torch.nn.functional import cross_entropy

import evenstep
from documents import Documents
from evenstep.integrations import releases
from evenstep.integrations.handed_steps import without_loss
from evenstep.integrations.job_facts import StepValues, estimate_steps
from evenstep.integrations.rank_values import all_parts, read_state, save_state
from loader_options import grouped

DOCUMENTS = Documents(300, longest=64)


def loader_of(**options: Any) -> evenstep.DataLoader:
    options = {"policy": evenstep.Even(256), "shuffle": True, "buffer_size": 32} | options
    return evenstep.DataLoader(DOCUMENTS, **grouped(**options))


def test_a_release_without_a_hook_is_refused_by_the_name_of_the_hook() -> None:
    releases.check_hooks("numpy", Documents, "__len__", "__getitem__")
    with pytest.raises(ImportError, match=r"has no Documents\.begin, which evenstep needs"):
        releases.check_hooks("numpy", Documents, "__len__", "begin")


def test_a_batch_without_loss_has_no_label_that_counts() -> None:
    batch = evenstep.PadCollator()([DOCUMENTS[0], DOCUMENTS[1]])
    batch["shift_labels"] = batch["labels"].clone()
    filler = without_loss(batch)
    assert set(filler) == set(batch)
    assert torch.equal(filler["input_ids"], batch["input_ids"])
    assert (batch["labels"] != -100).any(), "the batch itself is as it was"
    for name in ("labels", "shift_labels"):
        assert filler[name].dtype == torch.int64
        logits = torch.zeros(filler[name].numel(), 64)
        assert cross_entropy(logits, filler[name].flatten(), reduction="sum") == 0


def test_values_to_log_are_those_of_the_steps_since_the_last_log() -> None:
    values = StepValues()
    assert values.take() == {}
    steps = [step for _, step in loader_of(accumulate=2).steps()]
    tokens = 0
    for part in (steps[:4], steps[4:5], steps[5:]):
        for step in part:
            values.add(step)
        tokens += sum(step.global_tokens for step in part)
        taken = values.take()
        real = sum(step.global_tokens for step in part)
        padded = sum(step.global_padded_tokens for step in part)
        assert taken["padding"] == pytest.approx(1 - real / padded)
        assert taken["imbalance"] == 1
        assert taken["tokens"] == tokens
        assert taken["tokens_per_step"] == pytest.approx(real / len(part))
        assert math.isfinite(taken["composition"])
    assert tokens == DOCUMENTS.lengths.sum()
    assert values.take() == {}


def saved_in_mid_epoch(rank: Rank, folder: Path) -> list[int]:
    loader = loader_of(accumulate=2)
    loader.take_sync()
    steps = loader.steps()
    seen = [index for _ in range(4) for index in next(steps)[1].indices]
    save_state(folder, "loader", loader.state_dict())
    return seen


@pytest.mark.timeout(90)
def test_a_state_of_ranks_that_wait_at_updates_resumes_on_one_alone(tmp_path: Path) -> None:
    before = run(saved_in_mid_epoch, 2, tmp_path, folder=tmp_path, within=60)
    loader = loader_of(accumulate=2)
    loader.load_state_dict(read_state(tmp_path, "loader"))
    rest = [index for _, step in loader.steps() for index in step.indices]
    assert sorted([*before[0], *before[1], *rest]) == list(range(len(DOCUMENTS)))


class Broken(evenstep.Even):
    """Fails where it forms groups, as a policy of a user's may."""

    def propose(self, *arguments: Any, **options: Any) -> Any:
        raise ArithmeticError("no groups today")


class Unreadable(Documents):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise OSError("the disk is gone")


def outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def shared(rank: Rank, folder: Path) -> list[Any]:
    """What each shared part does on two ranks, in the same order on both."""
    loader = loader_of()
    steps = loader.steps()
    for _ in range(3):
        next(steps)
    own = loader.state_dict()
    save_state(folder, "loader", own)
    whole = read_state(folder, "loader")
    other = loader_of()
    other.load_state_dict(whole)
    follows = [[s.indices for _, s in one] for one in (steps, other.steps())]
    (folder / "file").touch()
    unreadable = Unreadable(300, longest=64)
    return [
        sorted(own),
        follows[0] == follows[1] != [],
        sorted(whole),
        sorted(all_parts({f"part {rank.rank}": rank.rank})),
        estimate_steps(loader_of()),
        outcome(lambda: save_state(folder / "file", "loader", own)),
        outcome(lambda: read_state(folder, "missing")),
        outcome(lambda: read_state(folder, "damaged")),
        outcome(lambda: read_state(folder, "no_text")),
        outcome(lambda: estimate_steps(loader_of(policy=Broken(256)))),
        outcome(lambda: estimate_steps(evenstep.DataLoader(unreadable, policy=evenstep.Even(256)))),
    ]


TOLD = [
    ("ConfigurationError", "loader.json"),
    ("MismatchError", "has no missing.json: it was saved without evenstep"),
    ("MismatchError", "damaged.json"),
    ("MismatchError", "no_text.json"),
    ("EvenstepError", "no groups today"),
    ("EvenstepError", "the disk is gone"),
]


@pytest.mark.timeout(90)
def test_on_two_ranks_states_come_together_and_errors_of_one_reach_both(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    saved.mkdir()
    (saved / "damaged.json").write_text('{"version": 2, ')
    (saved / "no_text.json").write_bytes(b"\xff\xfe\x00")
    first, second = run(shared, 2, saved, folder=tmp_path, within=60)
    for rank, (own, goes_on, *others) in enumerate((first, second)):
        assert own == [f"dp_rank_{rank}", "epoch", "job", "of", "version"]
        assert goes_on
        assert others == first[2:], "what all ranks say is the same on all"
    whole, parts, estimate, *told = first[2:]
    assert whole == ["dp_rank_0", "dp_rank_1", "epoch", "job", "of", "version"]
    assert parts == ["part 0", "part 1"]
    assert estimate > 10
    for text, (kind, part) in zip(told, TOLD, strict=True):
        assert text.startswith(f"{kind}:")
        assert part in text
    assert sorted(json.loads((saved / "loader.json").read_text())) == whole
