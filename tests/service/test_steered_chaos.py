"""A job of 20 sources on S3 whose loaders are killed, whose storage fails, and which is changed by
hand all the while: every batch is that of a replay of the changes in one process.

    EVENSTEP_SOAK_SECONDS=1200 pytest -m soak -s tests/service/test_steered_chaos.py
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from service_world import comparable, job_of, rows, tokens_of_row, write_jsonl, write_parquet

pytest.importorskip("zmq", reason="pyzmq is not installed")
pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, MeshChangedError
from evenstep.service.planner.changes import Change

SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", "1200"))
SOURCES = 20


class FlakyProxy(ThreadingHTTPServer):
    """In front of a server: some answers are 503, cut off, or late."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.rate = (host, port), 0.0
        self.random, self.faults = random.Random(0), Counter[str]()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: FlakyProxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        fault = ""
        if self.server.random.random() < self.server.rate:
            fault = self.server.random.choice(["busy", "cut", "late"])
            self.server.faults[fault] += 1
        if fault == "late":
            time.sleep(0.3)
        if fault == "busy":
            self.send_error(503, "SlowDown")
            return
        there = http.client.HTTPConnection(*self.server.behind)
        there.request(self.command, self.path, headers=dict(self.headers))
        answer = there.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)
        if fault == "cut":
            self.close_connection = True

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def flaky(
    tmp_path: Path, s3: Any, s3_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlakyProxy]:
    for number in range(SOURCES):
        table = rows(200, 1000 * (number + 1), 60)
        write = (write_parquet, write_jsonl)[number % 2]
        name = f"{number}.{('parquet', 'jsonl')[number % 2]}"
        s3.put(str(write(tmp_path / name, table)), f"corpus/{name}")
    proxy = FlakyProxy(*s3_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.server_address[1]}")
    yield proxy
    proxy.shutdown()


def job_on_s3() -> es.Job:
    sources = [
        es.Source(
            f"s{number}",
            f"s3://corpus/{number}.{('parquet', 'jsonl')[number % 2]}",
            transform=tokens_of_row,
            block=8,
        )
        for number in range(SOURCES)
    ]
    return job_of(Path(), sources=sources, mesh={"DP": 2}, max_tokens=400)


class Run:
    """Ranks of a job that take steps together, and what they got."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.got: dict[tuple[int, int], str] = {}
        """By step and rank, a digest of the batches."""
        self.meshes: list[tuple[int, int]] = []
        """After the first: the first step and the ranks."""
        self.clients = [service.client(rank) for rank in range(len(service.job.tree))]

    def step(self) -> bool:
        """Whether there was another one."""
        for rank, client in enumerate(self.clients):
            with suppress(StopIteration):
                self._take(rank, client)
                continue
            return False
        return True

    def _take(self, rank: int, client: Any) -> None:
        batches, about = next(client)
        whole = repr(comparable([(batches, about)])).encode()
        self.got[about.step, rank] = hashlib.md5(whole).hexdigest()

    def remesh(self, job: Any, size: int, at_step: int | None = None) -> None:
        job.remesh({"DP": size}, at_step)
        for rank, client in enumerate(self.clients):
            with suppress(MeshChangedError):
                while True:
                    self._take(rank, client)
        self.clients = [self.service.client(rank) for rank in range(size)]
        self.meshes.append((self.clients[0].step, size))


@pytest.mark.soak
@pytest.mark.timeout(3 * SECONDS + 600)
def test_every_batch_is_that_of_a_replay_of_the_changes(flaky: FlakyProxy, tmp_path: Path) -> None:
    job, seed = job_on_s3(), int(os.environ.get("EVENSTEP_SEED", "0"))
    choices, done = random.Random(seed), Counter[str]()
    name = f"steered-{os.getpid()}"
    options: dict[str, Any] = {"loaders": 3, "store": tmp_path / "store", "name": name}
    options["faults"] = es.ServiceFaults(standbys=1)
    with es.start(job, backend="processes", **options) as service:
        run, end = Run(service), time.monotonic() + SECONDS
        flaky.rate = 0.05
        with es.attach(service.address, name) as hands:
            while time.monotonic() < end:
                for _ in range(choices.randrange(30)):
                    assert run.step()
                    time.sleep(0.01)
                action = choices.choice(["weights", "own", "drop", "add", "scale", "kill", "mesh"])
                with suppress(ConfigurationError):  # dropped already, say
                    change(action, hands, service, run, choices)
                    done[action] += 1
            hands.drain()
        while run.step():
            pass
        changes = [Change.from_dict(each) for each in service.status()["planner"]["changes"]]
        restarts = len(service.status()["restarts"])
    flaky.rate = 0.0
    with es.start(job, backend="local") as local:
        for each in changes:
            local._asked(each.kind, each.value, each.step)
        again = Run(local)
        for begin, size in run.meshes:
            while again.clients[0].step < begin:
                assert again.step()
            again.remesh(local, size, begin)
        while again.step():
            pass
    print(f"{len(run.got)} batches, {dict(done)}, {restarts} restarts, {dict(flaky.faults)}")
    different = [key for key in run.got if run.got[key] != again.got.get(key)]
    assert not different, sorted(different)[:5]
    assert run.got.keys() == again.got.keys()


def change(action: str, hands: Any, service: Any, run: Run, choices: random.Random) -> None:
    source = f"s{choices.randrange(SOURCES)}"
    if action == "weights":
        dropped = [
            c["value"] for c in service.status()["planner"]["changes"] if c["kind"] == "drop"
        ]
        names = [f"s{number}" for number in range(SOURCES) if f"s{number}" not in dropped]
        hands.set_weights({name: choices.random() + 0.01 for name in names[:12]})
    elif action == "own":
        hands.set_weights(None)
    elif action == "drop":
        hands.drop_source(source)
    elif action == "add":
        hands.add_source(source)
    elif action == "scale":
        hands.use_loaders(choices.randint(1, 4))
    elif action == "kill":
        loader = choices.choice(service.status()["loaders"])
        if (process := loader["process"].get("process")) is not None:  # it does not restart
            os.kill(process, signal.SIGKILL)
    else:
        run.remesh(hands, choices.randint(1, 3))
