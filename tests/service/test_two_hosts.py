"""A service on two hosts: networks, names and temporary folders of their own, joined by a cable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_world import in_one_process, job_of

from hosts import Host, two_hosts, why_not_two

pytest.importorskip("zmq", reason="pyzmq is not installed")


HERE = Path(__file__).parent
GONE_WITHIN = 25.0  # seconds in which a host that takes five to be missed is missed in any case


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if why := why_not_two():
        pytest.skip(f"this machine cannot be two hosts: {why}")
    with two_hosts() as pair:
        yield pair


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def tell_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("on\n")
    process.stdin.flush()


SERVER = """
import pickle, sys
from concurrent.futures import Future
from evenstep.service.transport.endpoint import Keys
from evenstep.service.transport.frames import from_frames
from evenstep.service.transport.server import Server

def answering(frames):
    answered = Future()
    if from_frames(frames) != "never":
        answered.set_result(frames)
    return answered

server = Server(answering, name="echo", host=sys.argv[1], keys=Keys.new())
print(pickle.dumps(server.endpoint).hex())
sys.stdin.readline()
"""
CLIENT = """
import pickle, sys
from evenstep.service.transport.connection import Connections
from evenstep.service.transport.frames import to_frames

connections = Connections(pickle.loads(bytes.fromhex(sys.argv[1])))
used = [connections.send(to_frames(str(number))) for number in range(3)]
for each in used:
    each.wait()
waiting = connections.send(to_frames("never"))
print("connected")
sys.stdin.readline()  # the other host is gone
sent = [waiting, *(connections.send(to_frames("x" * size)) for size in (1, 1_000_000, 1, 1))]
print([each.wait(float(sys.argv[2])) for each in sent])
"""


def test_a_host_that_is_gone_is_missed_whatever_is_on_its_way_to_it(
    hosts: tuple[Host, Host],
) -> None:
    """By connections that wait, that send, that are new."""
    first, second = hosts
    server = first.python("-c", SERVER, first.address)
    client = second.python("-c", CLIENT, line_of(server).strip(), GONE_WITHIN)
    assert line_of(client) == "connected\n"
    first.unplug()
    tell_on(client)
    assert json.loads(line_of(client).lower()) == [True] * 5
    client.communicate()


DRIVER = """
import json, pathlib, sys
import evenstep.service as es
from service_world import job_of, striped

job = job_of(pathlib.Path(sys.argv[2]), stop="all_exhausted")
options = {"loaders": striped(job, 2, 8), "constructors": 2}
ray = es.RayOptions(address=sys.argv[1], cpus=1.0)
with es.start(job, name="hosts", ray=ray, **options) as service:
    status = service.status()
    roles = [status["planner"], *status["loaders"], *status["constructors"]]
    print(json.dumps([role["process"]["host"] for role in roles]))
    sys.stdin.readline()
"""
TRAINER = """
import json, sys
import evenstep.service as es
from service_world import comparable, steps_of

client = es.Client(sys.argv[1], "hosts")
print(json.dumps(comparable(steps_of(client)), default=repr))
client = es.Client(sys.argv[1], "hosts")
steps_of(client, 1)
print("again")
sys.stdin.readline()  # the other host is gone
print("rest", json.dumps(comparable(steps_of(client)), default=repr))
"""
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
}


def start_ray(host: Host, *options: str) -> None:
    subprocess.run(
        host.command(
            Path(sys.executable).with_name("ray"), "start", f"--node-ip-address={host.address}"
        )
        + list(options),
        env={**os.environ, **RAY},
        check=True,
        capture_output=True,
    )


@pytest.mark.soak
def test_roles_on_two_hosts_give_the_steps_of_one_process_and_move_when_a_host_is_gone(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    job = job_of(tmp_path, stop="all_exhausted")
    expected = in_one_process(job)
    first, second = hosts
    address = f"{first.address}:6379"
    memory = "--object-store-memory=100000000"
    # The first has room for all five roles.
    head = ("--head", "--port=6379", "--include-dashboard=false", "--num-cpus=5", memory)
    start_ray(first, *head)
    start_ray(second, f"--address={address}", "--num-cpus=3", memory)
    driver = first.python("-c", DRIVER, address, tmp_path, **RAY)
    assert set(json.loads(line_of(driver))) == {"host0", "host1"}
    trainers = [
        host.python("-c", TRAINER, address, RANK=str(rank), **RAY)
        for rank, host in enumerate(hosts)
    ]
    taken = [json.loads(line_of(trainer)) for trainer in trainers]
    assert taken == json.loads(json.dumps(expected, default=repr))
    assert len(taken[0]) > 5
    assert [line_of(trainer) for trainer in trainers] == ["again\n"] * 2
    second.unplug()
    tell_on(trainers[0])
    while not (line := line_of(trainers[0])).startswith("rest "):  # Ray says that a host is gone
        assert line
    assert json.loads(line.removeprefix("rest ")) == taken[0][1:]
