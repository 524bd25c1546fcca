"""`start`: what a service does is tested on every backend."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_world import KEY, SECRET

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
def s3_server() -> Iterator[tuple[str, int]]:
    """Host and port of an S3 server in this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def s3(s3_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its file system, which the environment names, with an empty bucket `corpus`."""
    import s3fs

    host, port = s3_server
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "us-east-1"}
    for name, value in {**given, "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    system = s3fs.S3FileSystem(skip_instance_cache=True)
    system.mkdir("corpus")
    yield system
    system.rm("corpus", recursive=True)


@pytest.fixture(scope="module")
def ray_of_file() -> Iterator[None]:
    """One small cluster for all tests of a file."""
    from ray_cluster import small_cluster

    with small_cluster():
        yield
