"""A service on two hosts: networks, names and temporary folders of their own, joined by a cable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from service_world import in_one_process, job_of

from hosts import Host, Hosts

pytest.importorskip("zmq", reason="pyzmq is not installed")


HERE = Path(__file__).parent
POOR = {"delay": 0.05, "loss": 0.01}
GONE_WITHIN = 25.0  # seconds in which a host that takes five to be missed is missed in any case


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


def test_a_host_that_is_gone_is_missed_whatever_is_on_its_way_to_it(hosts: Hosts) -> None:
    """By connections that wait, that send, that are new."""
    first, second, cable = hosts
    server = first.python("-c", SERVER, first.address)
    client = second.python("-c", CLIENT, line_of(server).strip(), GONE_WITHIN)
    assert line_of(client) == "connected\n"
    cable.change(cut=True)
    tell_on(client)
    assert json.loads(line_of(client).lower()) == [True] * 5
    client.communicate()


WAITER = """
import pickle, sys, time
from evenstep.service.transport.connection import Connections
from evenstep.service.transport.frames import to_frames

connections = Connections(pickle.loads(bytes.fromhex(sys.argv[1])))
waiting = []
for _ in range(8):
    waiting.append(connections.send(to_frames("never")))
    time.sleep(0.4)
print("connected")
sys.stdin.readline()  # the network is there again
time.sleep(3)
print([each.wait(0) for each in waiting])
"""


@pytest.mark.slow
def test_a_network_that_is_gone_for_three_seconds_costs_no_connection(hosts: Hosts) -> None:
    """Whenever the last answer to the kernel's questions came before. It gives up after five."""
    first, second, cable = hosts
    endpoint = line_of(first.python("-c", SERVER, first.address)).strip()
    for _ in range(5):
        client = second.python("-c", WAITER, endpoint)
        assert line_of(client) == "connected\n"
        begin = time.monotonic()
        cable.change(cut=True)
        time.sleep(3)
        cable.change(cut=False)
        if time.monotonic() < begin + 3.5:
            tell_on(client)
            assert json.loads(line_of(client).lower()) == [False] * 8
            return
        client.kill()  # it was gone for longer, as the cable was late
    pytest.skip("this machine is too busy to be without a network for three seconds only")


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
import json, sys, time
import evenstep.service as es
from service_world import comparable, steps_of

while True:
    client = es.Client(sys.argv[1], "hosts")
    taken = steps_of(client, 1)
    print("begun")
    sys.stdin.readline()  # the network has changed
    begin = time.monotonic()
    taken += steps_of(client)
    print("taken", json.dumps([time.monotonic() - begin, comparable(taken)], default=repr))
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


def taken_by(trainer: subprocess.Popen[str]) -> tuple[float, list[Any]]:
    """Seconds, and all steps."""
    while not (line := line_of(trainer)).startswith("taken "):  # Ray says that a host is gone
        assert line
    seconds, steps = json.loads(line.removeprefix("taken "))
    return seconds, steps


def await_begin(trainer: subprocess.Popen[str]) -> None:
    while (line := line_of(trainer)) != "begun\n":
        assert line


CUTS = [("both", 3.0), ("there", 3.0), ("back", 3.0), ("both", 8.0)]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_roles_on_two_hosts_give_the_steps_of_one_process_and_move_when_a_host_is_gone(
    hosts: Hosts, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    job = job_of(tmp_path, stop="all_exhausted")
    expected = json.loads(json.dumps(in_one_process(job), default=repr))
    assert len(expected[0]) > 5
    first, second, cable = hosts
    cable.change(**POOR)
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
        for rank, host in enumerate((first, second))
    ]
    for way, seconds in CUTS:
        for trainer in trainers:
            await_begin(trainer)
        towards = {"both": None, "there": second, "back": first}[way]
        cable.change(towards=towards, cut=True)
        for trainer in trainers:
            tell_on(trainer)
        time.sleep(seconds)
        cable.change(cut=False)
        took, steps = zip(*map(taken_by, trainers))
        print(f"cut {way} for {seconds} s: {took}", file=sys.stderr)
        assert list(steps) == expected
    for trainer in trainers:
        await_begin(trainer)
    cable.change(cut=True)
    for trainer in trainers:
        tell_on(trainer)
    seconds, steps = taken_by(trainers[0])  # the trainer of the other host can only wait
    print(f"cut for good: {seconds:.1f} s", file=sys.stderr)
    assert steps == expected[0]
