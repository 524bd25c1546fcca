"""Options of policies: which names take which, which are refused, and which ranks compare."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from evenstep.cost import Cost, GroupShapes, TokenCost, TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan import (
    Even,
    FixedBatch,
    Policy,
    PoolSort,
    SequencePacking,
    TokenBudget,
    Window,
)
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions

LAYERS = TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128)
GIVEN = PolicyOptions(max_tokens=100, target_tokens=50, batch_size=3, cost=TokenCost())
OTHERS: dict[str, Any] = {"max_tokens": 200, "target_tokens": 60, "batch_size": 4}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_depends_on_the_options_it_takes_and_no_others(name: str) -> None:
    named = POLICIES[name]
    policy = named(GIVEN)
    assert policy.cost == TokenCost()
    for option, value in OTHERS.items():
        other = named(dataclasses.replace(GIVEN, **{option: value}))
        assert (other != policy) == (option in named.takes), option


REFUSED: list[tuple[type[Policy], dict[str, Any], str]] = [
    *(
        (FixedBatch, {"batch_size": n}, f"batch_size={n!r} must be")
        for n in (0, -4, 2.0, "8", True)
    ),
    (FixedBatch, {"batch_size": None}, "batch_size=None must be an integer"),
    (PoolSort, {"batch_size": 8, "pool_size": 7}, "pool_size=7 must be at least batch_size=8"),
    *(
        (kind, {"max_tokens": n}, f"max_tokens={n!r}")
        for kind in (TokenBudget, Even, SequencePacking)
        for n in (0, -5, 4096.0, "4096", True, None)
    ),
    (TokenBudget, {"max_tokens": 100, "max_patches": 0}, "max_patches=0 must be at least 1"),
    (TokenBudget, {"max_tokens": 100, "max_wait": -1}, "max_wait=-1 must be at least 0"),
    (Even, {"max_tokens": 100, "target_tokens": 0}, "target_tokens=0 must"),
    (Even, {"max_tokens": 100, "target_tokens": 101}, "target_tokens=101 must"),
    (Even, {"max_tokens": "auto", "target_tokens": 9}, "target_tokens=9 must"),
    (Even, {"max_tokens": 400, "sync": "epoch"}, "sync='epoch' must be 'step' or 'update'"),
    (SequencePacking, {"max_tokens": 1, "max_wait": -1}, "max_wait=-1 must be at least 0"),
]


@pytest.mark.parametrize(
    ("kind", "options", "said"), REFUSED, ids=lambda each: getattr(each, "__name__", None)
)
def test_wrong_options_are_refused_by_name_value_and_limit(
    kind: type[Policy], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kind(**options)


def double(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return 2.0 * shapes.tokens


class Doubled:
    def __call__(self, shapes: GroupShapes, *, packed: bool) -> np.ndarray:
        return 2.0 * shapes.tokens


@pytest.mark.parametrize("cost", [double, Doubled(), LAYERS])
@pytest.mark.parametrize("name", POLICIES)
def test_options_are_plain_values_and_equal_wherever_the_policy_was_built(
    name: str, cost: Cost
) -> None:
    sizes: Any = {"max_tokens": np.int64(100), "batch_size": np.int64(3)}
    options = POLICIES[name](PolicyOptions(cost=cost, **sizes)).options()
    # The default repr of functions and objects holds an address, which differs between ranks.
    assert "0x" not in str(options)
    assert json.loads(json.dumps(options)) == options


def test_patches_are_counted_only_where_they_are_limited_and_then_needed() -> None:
    limited = TokenBudget(100, max_patches=8)
    assert not TokenBudget(100).counts_patches
    assert limited.counts_patches
    ages = np.zeros(2, np.int64)
    with pytest.raises(ConfigurationError, match="max_patches=8 needs the patches"):
        limited.propose(Window(lengths=ages + 1, ages=ages))
