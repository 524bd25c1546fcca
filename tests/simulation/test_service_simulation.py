"""The service on a simulated cluster: histories of roles and trainers that are killed, stopped, cut
off, late and resumed, none of which may hang, lose or repeat a sample, or end without saying why.

``cd tests/simulation; python -m replay service:SEED`` plays one of them again. A long run::

    EVENSTEP_SIMULATION_SECONDS=3600 make soak PYTEST_ARGS="-k simulation"
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import pytest

pytest.importorskip("greenlet")

from endurance import SOAK_SECONDS, check, run_for_long
from service_histories import by_policy, service_history_of, service_reference
from service_mutations import SERVICE_MUTATIONS
from service_settings import POLICIES
from simulated_modules import simulated_cluster
from simulated_mutations import Mutation

MENDED = """
    38 111 100145 100392 100561 104436 300339 500217 600645 600866 602721 603426 606160 801267
    804194 804526 900957 2000554 2006217 2006316 4002328
"""
SEEDS = (*range(4), 8, *map(int, MENDED.split()))
"""Those above 8 once found faults, for example: states lacked reports, or had some twice; a
registry took a rank's failure with it; a loader that had been taken out was looked for; ranks that
were started again met the clients from before; a planner that was made again knew of no step to
save at; two played the same loader; a message that came again was taken for one of the next client;
ranks that saved where the mesh changes waited for those of the next mesh; a loader was ended while
samples of a dropped step were fetched from it."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with simulated_cluster():
        yield


def test_no_history_hangs_loses_or_repeats_a_sample_or_ends_in_silence() -> None:
    faults: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for seed in SEEDS:
        played = check(service_history_of(seed))
        faults += played.faults
        errors += played.errors
    # The histories are worth something: what may happen happens in them.
    assert {"kill", "stop", "delay", "cut", "repeat"} <= faults.keys()
    assert {"SampleError", "CollateError", "EvenstepError"} <= errors.keys()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_history_of_a_job_that_a_policy_plans_does_either(policy: str) -> None:
    for seed in range(3000, 3003):
        check(by_policy(service_history_of(seed), policy))


def test_one_seed_is_one_history() -> None:
    for seed in range(1, 2):
        history = service_history_of(seed)
        given = type(history).from_text(history.to_text())
        assert history.play() == given.play()


@pytest.mark.parametrize("mutation", SERVICE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_fault_is_found(mutation: Mutation) -> None:
    seeds = range(mutation.near, mutation.near + 200)
    with mutation.applied():
        service_reference.cache_clear()
        try:
            found = next((n for n in seeds if service_history_of(n).play().violation), None)
        finally:
            service_reference.cache_clear()
    print(f"{mutation.name}: seed {found}", file=sys.stderr)
    assert found is not None


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_simulation_of_the_service_for_long() -> None:
    run_for_long(service_history_of)
