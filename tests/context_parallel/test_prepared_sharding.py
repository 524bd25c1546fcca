"""`prepare` and `PreparedSharding`: ranks that do not agree all raise, and none is left waiting."""

from __future__ import annotations

from typing import Any

import pytest
from threaded_ranks import ThreadCollectives, on_ranks

from evenstep.context_parallel import prepare
from evenstep.errors import ConfigurationError, MismatchError, PeerError
from evenstep.plan.sharding import Sharding, shard_per_document, shard_per_sequence

LENGTHS = [7, 1, 30, 2, 13]
HOME = "evenstep.context_parallel.prepared_sharding"


def prepared(
    monkeypatch: pytest.MonkeyPatch, shardings: list[Sharding], **options: Any
) -> list[Any]:
    """What `prepare` gives or raises on each rank."""

    def one(ranks: ThreadCollectives) -> Any:
        chosen = dict({"device": "cpu"}, **{k: v[ranks.rank] for k, v in options.items()})
        return prepare(shardings[ranks.rank], ranks, **chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(f"{HOME}.collectives_of", lambda group, ranks: group)
    return on_ranks(len(shardings), one)


def test_ranks_that_agree_get_their_own_part_and_unchecked_ones_exchange_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sharding, same = shard_per_document(LENGTHS, 3), shard_per_document(LENGTHS, 3)
    for check, calls in ((True, [("all_gather", (1,))]), (False, [])):
        ready = prepared(monkeypatch, [sharding, sharding, same], check=[check] * 3)
        assert [each.tokens for each in ready] == sharding.tokens.tolist()
        assert [each.rank for each in ready] == [0, 1, 2]
        assert {each.slot for each in ready} == {sharding.tokens.max()}
        assert [each.collectives.calls for each in ready] == [calls] * 3


def test_ranks_that_differ_or_fail_raise_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = shard_per_document(LENGTHS, 3), shard_per_sequence(LENGTHS, 3)
    errors = prepared(monkeypatch, [one, other, one])
    assert [type(error) for error in errors] == [MismatchError] * 3
    said = "rank 1 has another sharding than ranks [0, 2]: its own is per-sequence"
    assert said in str(errors[1])
    assert "rank 2 has another sharding than ranks [1]" in str(errors[2])
    errors = prepared(monkeypatch, [one] * 3, backend=["auto", "auto", "flash"])
    assert [type(error) for error in errors] == [PeerError, PeerError, ConfigurationError]
    assert "ranks [2] could not prepare" in str(errors[0])
    assert "backend='flash'" in str(errors[2])
    errors = prepared(monkeypatch, [one] * 2)
    assert [type(error) for error in errors] == [ConfigurationError] * 2
    assert "the group has 2 ranks, and the sequence is cut over 3" in str(errors[0])
