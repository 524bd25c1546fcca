"""Micro-batches for trainers that know no epochs, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import evenstep
from documents import Documents
from evenstep.errors import MismatchError
from evenstep.integrations.update_stream import UpdateStream

DOCUMENTS = Documents(30, longest=64)
IDENTITIES = set(range(30))


@pytest.fixture
def streams() -> Iterator[Any]:
    made = []

    def make(per_update: int = 1, *, epochs: int = 0, policy: Any = None) -> UpdateStream:
        policy = policy or evenstep.Even(128)
        made.append(UpdateStream(DOCUMENTS, policy, per_update, group="local", epochs=epochs))
        return made[-1]

    yield make
    for stream in made:
        stream.loader.close()


def trained_on(batches: Any) -> list[int]:
    """Samples of batches that bear a loss."""
    bearing = (batch for batch in batches if (batch["labels"] != -100).any())
    return [identity for batch in bearing for identity in batch["identity"].tolist()]


def test_an_update_that_an_epoch_leaves_short_is_filled_without_loss(streams: Any) -> None:
    policy = evenstep.SequencePacking(128)  # its steps do not depend on the size of updates
    steps = len(list(streams(epochs=1, policy=policy)))
    per_update = steps - 1
    batches = list(streams(per_update, epochs=2, policy=policy))
    assert len(batches) == 4 * per_update
    for epoch in (batches[: 2 * per_update], batches[2 * per_update :]):
        assert sorted(trained_on(epoch)) == sorted(IDENTITIES)
        assert not trained_on(epoch[-per_update + 1 :])


def test_epochs_follow_each_other_without_end(streams: Any) -> None:
    stream = streams()
    seen = trained_on(islice(stream, 50))
    assert len(seen) > 2 * len(IDENTITIES)
    for begin in range(0, len(seen) - len(IDENTITIES), len(IDENTITIES)):
        assert set(seen[begin : begin + len(IDENTITIES)]) == IDENTITIES
    assert stream.step.epoch >= 2
    assert stream.values.take()["tokens"] > 2 * DOCUMENTS.lengths.sum()


def test_a_step_of_several_micro_batches_is_handed_out_one_by_one(streams: Any) -> None:
    policy = evenstep.WorkloadPacking(96, micro_batches=3)
    batches = list(streams(3, epochs=1, policy=policy))
    assert not len(batches) % 3
    tokens = sum(int(batch["cu_seqlens"][-1]) for batch in batches if (batch["labels"] >= 0).any())
    assert tokens == DOCUMENTS.lengths.sum()


@pytest.mark.parametrize("handed", [0, 4])
def test_a_state_goes_on_after_its_update(streams: Any, handed: int) -> None:
    straight = list(streams(2, epochs=2))
    stream = streams(2, epochs=2)
    batches = iter(stream)
    list(islice(batches, handed))
    again = streams(2, epochs=2)
    again.load_state_dict(stream.state_dict())
    rest = list(again)
    assert len(rest) == len(straight) - handed
    assert all(a["labels"].equal(b["labels"]) for a, b in zip(rest, straight[handed:]))


def test_what_cannot_be_is_refused(streams: Any) -> None:
    stream = streams(2)
    next(iter(stream))
    with pytest.raises(evenstep.ConfigurationError, match="1 micro-batches into an update of 2"):
        stream.state_dict()
    with pytest.raises(MismatchError, match=r"has \['dp_rank_0'\] and no 'evenstep'"):
        streams().load_state_dict({"dp_rank_0": b""})
    policy = evenstep.WorkloadPacking(96, micro_batches=3)
    with pytest.raises(evenstep.ConfigurationError, match=r"makes 3 micro-batches .* takes 2"):
        streams(2, policy=policy)
    with pytest.raises(evenstep.ConfigurationError, match="TokenBudget makes padded batches"):
        streams(policy=evenstep.TokenBudget(128))
