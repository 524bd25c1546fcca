"""`start`: what a service does is tested on every backend."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import evenstep.service as es

sys.path.append(str(Path(__file__).parents[1] / "scenarios"))  # jobs of several ranks

BACKENDS = ("local", "processes", "ray")
SOAK = (pytest.mark.soak, pytest.mark.timeout(1200))  # a test may start a dozen services on Ray
numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `start` runs on all backends: in one process, or on those that its mark
    `backends` names, in the suite, and on the others in soak runs."""
    if "start" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("backends")
        in_suite = ("local",) if mark is None else mark.args
        backends = [pytest.param(each, marks=() if each in in_suite else SOAK) for each in BACKENDS]
        metafunc.parametrize("start", backends, indirect=True, scope="module")


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`evenstep.service.start` on one backend, under a name that no other service has."""
    backend = request.param
    if backend == "processes":
        pytest.importorskip("zmq", reason="pyzmq is not installed")
    if backend == "ray":
        request.getfixturevalue("ray_of_file")

    def on_backend(job: es.Job, **options: Any) -> Any:
        if backend != "local":
            options["name"] = f"test-{os.getpid()}-{next(numbers)}"
        return es.start(job, backend=backend, **options)

    return on_backend


@pytest.fixture(scope="module")
def ray_of_file() -> Iterator[None]:
    """One small cluster for all tests of a file."""
    from ray_cluster import small_cluster

    with small_cluster():
        yield
