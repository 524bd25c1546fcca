"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings

from hosts import Hosts, two_hosts, why_not_two

# Machines that run the suite are shared, so the time of one example says nothing. More examples:
# EVENSTEP_EXAMPLES=1000 make test
# What fails is not made smaller: that can take longer than the whole suite, and the time limit of a
# test does not end it.
settings.register_profile(
    "evenstep",
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    max_examples=int(os.environ.get("EVENSTEP_EXAMPLES", "25")),
)
settings.load_profile("evenstep")

# Tests and what they import stay to the end: more than half a million objects, through which Python
# would look for garbage a thousand times, while it collects the tests and while it runs them.
gc.disable()

# A name that is no file would be looked up on a server, again and again where there is none.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A suite in the background, or under nohup, starts with these ignored, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _own_indexes(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["EVENSTEP_INDEX"] = str(tmp_path_factory.mktemp("indexes"))


@pytest.fixture
def without_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, "megatron.core.packed_seq_params", None)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if why := why_not_two():
        pytest.skip(f"this machine cannot be two hosts: {why}")
    with two_hosts() as pair:
        yield pair


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
