"""Every policy has a name, and is built from the options that it says it takes and no others."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from evenstep.cost import TokenCost
from evenstep.plan import Even, Lengths
from evenstep.plan.policies.by_name import POLICIES, PolicyOptions

OPTIONS = PolicyOptions(
    max_tokens=100,
    target_tokens=50,
    batch_size=3,
    cost=TokenCost(),
    lengths=Lengths(np.array([5, 6, 7])),
)
OTHERS: dict[str, Any] = {
    "max_tokens": 200,
    "target_tokens": 60,
    "batch_size": 4,
    "lengths": Lengths(np.array([1, 2, 3])),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_depends_on_the_options_it_takes_and_no_others(name: str) -> None:
    named = POLICIES[name]
    policy = named(OPTIONS)
    assert policy.cost == TokenCost()
    for option, value in OTHERS.items():
        other = named(dataclasses.replace(OPTIONS, **{option: value}))
        assert (other != policy) == (option in named.takes), option


@pytest.mark.parametrize("name", [name for name, one in POLICIES.items() if "spread" in one.takes])
def test_lengths_are_spread_or_not_as_asked_and_by_default_as_the_policy_does(name: str) -> None:
    usual = POLICIES[name](OPTIONS)
    for spread in (False, True):
        policy = POLICIES[name](dataclasses.replace(OPTIONS, spread=spread))
        assert policy == dataclasses.replace(usual, spread=spread)  # type: ignore[type-var]


def test_names_are_those_that_policies_give_themselves() -> None:
    for name, named in POLICIES.items():
        policy = named(OPTIONS)
        packed_even = isinstance(policy, Even) and policy.packed
        assert name == policy.name + "-packed" * packed_even
