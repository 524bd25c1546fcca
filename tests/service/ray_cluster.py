"""A small Ray of this machine for a file of tests, and other processes with a deadline."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    RAY_worker_niceness="0",  # other tests run beside these, and would go first
)

HERE = Path(__file__).parent
PATIENCE = 100.0  # seconds for what takes one or two on a machine that has nothing else to do


TOKEN = f"EVENSTEP_TEST_{os.getpid()}"
"""A variable in the environment of all processes that a `shell` starts."""


@contextmanager
def shell(home: Path) -> Iterator[dict[str, str]]:
    """The environment of a new shell, in which no Ray of another test is found."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # sockets in it need a short name
        yield {
            "HOME": str(home),
            "PATH": os.defpath,
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            TOKEN: "1",
        }


@contextmanager
def small_cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=100_000_000,
    )  # fmt: skip
    yield
    ray.shutdown()


class FarNode:
    """A node of a cluster of two, both on this host, that another one follows when it is lost."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.follow()

    def follow(self) -> None:
        """Begins a node."""
        self._cluster.add_node(
            num_cpus=4,
            labels={"place": "far"},
            resources={"far": 2},
            object_store_memory=100_000_000,
        )

    @property
    def node_id(self) -> str:
        """As Ray knows it."""
        import ray

        nodes = [node for node in ray.nodes() if node["Labels"].get("place") == "far"]
        return str(next(node["NodeID"] for node in nodes if node["Alive"]))

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            told = " ".join(process.info["cmdline"] or ())
            if process.info["name"] == "raylet" and '"place": "far"' in told:
                found += [each.pid for each in (process, *process.children(recursive=True))]
        return found


@contextmanager
def two_nodes() -> Iterator[FarNode]:
    """A cluster of two nodes. This process is on the one that is not far."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 4, "labels": {"place": "near"}, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        yield FarNode(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()


class Process:
    """Another Python process, which is ended with the test."""

    def __init__(self, arguments: Sequence[str], *, new_session: bool = False, **more: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=new_session,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def line(self) -> str:
        """The next that it prints."""
        try:
            return self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(
                f"{self.popen.args} printed nothing more in {PATIENCE:g} seconds; it ended with "
                f"{self.popen.poll()}"
            ) from None

    def json(self) -> Any:
        return json.loads(self.line())

    def tell(self, text: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait(timeout=PATIENCE)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line)


def having_token() -> list[psutil.Process]:
    """Processes of a `shell`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if TOKEN in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def until(happens: Any, what: str) -> None:
    """Waits for something."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, f"{what} did not happen in {PATIENCE:g} seconds"
        time.sleep(0.1)


def kill(*handles: Any) -> None:
    """Kills the processes of roles."""
    for handle in handles:
        os.kill(handle.place.known.process, signal.SIGKILL)


def stop(process: int) -> None:
    """Stops a process; returns when all its threads have, as until then one may still answer."""
    os.kill(process, signal.SIGSTOP)
    while set(_states(process)) != {"T"}:
        time.sleep(0.001)


def _states(process: int) -> Iterator[str]:
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            yield (thread / "stat").read_text().rpartition(") ")[2][0]
