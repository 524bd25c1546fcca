from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from evenstep.cost import Cost, PaddedTokenCost
from evenstep.plan import Even, FixedBatch, Policy, TokenBudget
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.update_size import UpdateSize
from evenstep.tools.advise import LengthSample, Prediction
from evenstep.tools.advise.predict import BASELINE, FIGURES, Build, predict
from evenstep.tools.advise.recommend import set_up
from evenstep.tools.simulate import deal, sample_lengths, simulate

COST = PaddedTokenCost()
UPDATE = 12_000
BUILDERS: Mapping[str, Build] = {
    "even": lambda s: Even(s.max_tokens, cost=s.cost),
    "token-budget": lambda s: TokenBudget(s.max_tokens, cost=s.cost),
    "fixed-batch": lambda s: FixedBatch(s.batch_size, cost=s.cost),
}


def run(
    length_sample: LengthSample,
    builders: Mapping[str, Build] = BUILDERS,
    *,
    max_tokens: int = 8192,
    cost: Cost = COST,
    seed: int = 5,
) -> dict[str, Prediction]:
    numbers = {"max_tokens": max_tokens, "batch_size": 3, "buffer_size": 128}
    numbers["update_tokens"] = UPDATE
    setup = set_up(length_sample, world_size=2, **numbers)
    found = predict(builders, length_sample, setup=setup, cost=cost, seed=seed)
    return {one.policy: one for one in found}


def length_sample_of(lengths: np.ndarray, total: int | None) -> LengthSample:
    return LengthSample(name="d", lengths=lengths, total=total, longest=None, how="")


def test_figures_of_all_samples_are_those_of_a_simulation_of_the_data() -> None:
    lengths = sample_lengths("mm-mix", 300, 3)
    found = run(length_sample_of(lengths, 300))
    shards = deal(300, 2, 5)
    for name, build in BUILDERS.items():
        policy = build(PolicyOptions(max_tokens=8192, batch_size=3, cost=PaddedTokenCost()))
        size = UpdateSize.of(policy, UPDATE, ranks=2, lengths=lengths)
        result = simulate(
            size.policy,
            [lengths[s] for s in shards],
            accumulate=size.accumulate,
            buffer_size=128,
            seed=5,
            identities=shards,
        )
        for figure in FIGURES:
            assert found[name].figures[figure] == getattr(result, figure)


def test_speed_up_is_efficiency_over_that_of_fixed_batches() -> None:
    found = run(length_sample_of(sample_lengths("sharegpt4o", 100, 3), 300), max_tokens=12_288)
    base = found[BASELINE].figures["efficiency"]
    for one in found.values():
        assert one.figures["speedup"] == pytest.approx(one.figures["efficiency"] / base)
    assert found[BASELINE].figures["speedup"] == 1.0 < found["even"].figures["speedup"]


def test_a_policy_that_cannot_run_says_why_and_keeps_its_place() -> None:
    def broken(options: PolicyOptions) -> Policy:
        raise ImportError("packing needs numba: pip install numba")

    builders = {"broken": broken, **BUILDERS}
    found = run(length_sample_of(sample_lengths("mm-mix", 200, 1), 200), builders)
    assert list(found) == list(builders)
    assert found["broken"].problem == "packing needs numba: pip install numba"
    values = found["broken"].as_dict()
    assert {values[name] for name in (*FIGURES, "speedup")} == {None}
    assert found["even"].problem is None
