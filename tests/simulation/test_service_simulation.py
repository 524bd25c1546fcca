"""The service on a simulated cluster: histories of roles and trainers that are killed, stopped, cut
off, late and resumed, none of which may hang, lose or repeat a sample, or end without saying why.

``cd tests/simulation; python -m replay service:SEED`` plays one of them again. A long run::

    EVENSTEP_SIMULATION_SECONDS=3600 make soak PYTEST_ARGS="-k simulation"
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("greenlet")

from endurance import SOAK_SECONDS, check_all, check_found, check_same, run_for_long
from service_histories import by_policy, service_history_of, service_reference
from service_mutations import SERVICE_MUTATIONS
from service_settings import POLICIES
from simulated_modules import simulated_cluster

from mutation import Mutation

MENDED = """
    111 783 969 100392 600645 600866 602721 603426 606160 801267 804194 804526 900957 2000554
    2006217 2006316 4002328 13000706
"""
SEEDS = (8, *map(int, MENDED.split()))
"""All but the first once found faults, for example: states lacked reports, or had some twice; a
registry took a rank's failure with it; a loader that had been taken out was looked for; ranks that
were started again met the clients from before; a planner that was made again knew of no step to
save at; two played the same loader; a message that came again was taken for one of the next client;
ranks that saved where the mesh changes waited for those of the next mesh; a loader was ended while
samples of a dropped step were fetched from it; and what roles said before the last ranks had ended
was judged as if it had come after."""
FAULTS = ("kill", "stop", "delay", "cut", "repeat")
ERRORS = ("SampleError", "CollateError", "EvenstepError")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with simulated_cluster():
        yield


def test_no_history_hangs_loses_or_repeats_a_sample_or_ends_in_silence() -> None:
    check_all(map(service_history_of, SEEDS), *FAULTS, *ERRORS)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_history_of_a_job_that_a_policy_plans_does_either(policy: str) -> None:
    check_all(by_policy(service_history_of(seed), policy) for seed in range(3000, 3003))


def test_one_seed_is_one_history() -> None:
    check_same(service_history_of(1))


@pytest.mark.parametrize("mutation", SERVICE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_fault_is_found(mutation: Mutation) -> None:
    check_found(mutation, service_history_of, service_reference)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_simulation_of_the_service_for_long() -> None:
    run_for_long(service_history_of)
