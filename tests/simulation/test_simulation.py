"""The whole loader on a simulated machine: thousands of histories of killed, stopped and resumed
jobs, none of which may hang, lose or repeat a sample, or end without saying why.

``cd tests/simulation; python -m replay SEED`` plays one of them again. A long run::

    EVENSTEP_SIMULATION_SECONDS=3600 make soak PYTEST_ARGS="-k simulation"
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("greenlet")

from endurance import SOAK_SECONDS, check_all, check_found, check_same, run_for_long
from loader_histories import loader_history_of, loader_reference
from loader_mutations import LOADER_MUTATIONS
from simulated_modules import simulated_machine

from mutation import Mutation

MENDED = """
    23 462 100022 100031 100121 100677 7001022 7002835 7006134 7009245 7011966 9009386 9011167
    10002689 11000549 12000062 12000550 12001747 12005157 12005264 12014125 16005517 18005286
"""
SEEDS = (*range(4), *map(int, MENDED.split()))
"""What the last ones found: other ranks ended an epoch in which one had failed; a rank that had
lost a message said only that the exchange had ended; ranks that share micro-batches could not skip
a chunk of bad samples; a pass hung where samples failed while many more were asked for; a batcher
in the trainer's process kept its threads where the sampler's error could not be sent; a rank was
suspected that had itself lost another while the ranks connected; after a resume, a sample of a step
that was planned already failed with the one after it; ranks were accused that had died of what
they were told, not the one that left; a rank that had lost a message named who left for it; one
that was stopped itself did not hear who had died; a pass that was left closed seconds late, because
its batcher was still sending; the simulation expected as many steps before a sample that fails
after a resume as without one; and a batcher whose pass had failed and the exchange, each sending
more than a pipe holds, waited for each other; and a rank that had been stopped as ranks met, and so
had no connection to the others, was not named when it died; and the exchange waited for ever for a
trainer that had learned what it needed, where a rank died just then."""
FAULTS = ("kill", "stop", "delay", "sends", "receives", "start")
ERRORS = ("SampleError", "CollateError", "LoaderDiedError", "PeerError")


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    with simulated_machine():
        yield


def test_no_history_hangs_loses_or_repeats_a_sample_or_ends_in_silence() -> None:
    check_all(map(loader_history_of, SEEDS), *FAULTS, *ERRORS)


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(seed: int) -> None:
    check_same(loader_history_of(seed))


@pytest.mark.parametrize("mutation", LOADER_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_fault_is_found(mutation: Mutation) -> None:
    check_found(mutation, loader_history_of, loader_reference)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_simulation_for_long() -> None:
    run_for_long(loader_history_of)
