"""What a message between two processes costs: the roads that the service could have taken.

A client asks with 300 bytes and waits for the answer, 300 bytes or 914 KB, which is a NumPy array
that the client gets as one: the metadata of a step, and its samples.

    Unix socket       plain, the answer received into memory of the client's: the floor
    pyzmq, ipc        DEALER and ROUTER over a Unix socket; the array is neither pickled nor copied
                      where libzmq allows
    pyzmq, tcp        the same over the loopback
    pyzmq, tcp+CURVE  the same, authenticated and encrypted
    Ray call          a method of an actor; answers over 100 KB go through the object store
    Ray graph         a compiled graph of the same method, through shared memory

"round trip" is the time that the client waits; "client" and "server" are processor time of a
message in either process, all threads counted (for Ray without its own daemons). Roads take turns;
what is not installed is skipped by name.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import Any

from benchmarks.lib.report import (
    Spread,
    as_dicts,
    in_turn,
    machine,
    parser,
    print_json,
    spreads,
)
from benchmarks.service.transport_roads import ROADS, SIZES, Road
from evenstep.tools.report import text_table

_WARM_UP = 20
_NEEDS = {"pyzmq": "zmq", "Ray": "ray"}

Figures = dict[str, float]


def measured(road: Road, messages: int) -> dict[str, Figures]:
    """By size of the answer: microseconds of a message."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, road(folder) as opened:
        for name, size in SIZES.items():
            count = messages if size < 10_000 else max(messages // 5, 10)
            for _ in range(_WARM_UP):
                opened.ask(size)
            server, client, begin = opened.cpu(), time.process_time(), time.perf_counter()
            for _ in range(count):
                # Not kept: a graph of Ray answers again once its last answer is let go.
                assert len(opened.ask(size)) == size
            wall, used = time.perf_counter() - begin, time.process_time() - client
            found[name] = {
                "round_trip_us": 1e6 * wall / count,
                "client_cpu_us": 1e6 * used / count,
                "server_cpu_us": 1e6 * (opened.cpu() - server) / count,
            }
    return found


def _measure(road: str, messages: int, results: Any) -> None:
    results.put(measured(ROADS[road], messages))


def in_a_process(road: str, messages: int) -> dict[str, Figures]:
    """Measures each road in a new process, so that libraries do not disturb each other."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure, args=(road, messages, results))
    process.start()
    while process.is_alive() and results.empty():
        process.join(0.1)
    if results.empty():
        sys.exit(f"{road} failed with exit code {process.exitcode}")
    found: dict[str, Figures] = results.get()
    process.join()
    return found


def missing(road: str) -> str | None:
    """The package that a road needs, if it is not installed."""
    for name, package in _NEEDS.items():
        if road.startswith(name) and find_spec(package) is None:
            return package
    return None


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.service.transport --messages 2000", repeats=5
    )
    arguments.add_argument("--messages", type=int, default=1000, help="of each road and size")
    arguments.add_argument("--roads", nargs="+", choices=list(ROADS), default=list(ROADS))
    options = arguments.parse_args()
    skipped = {road: missing(road) for road in options.roads if missing(road)}
    roads = [road for road in options.roads if road not in skipped]
    runs = in_turn(roads, options.repeats, lambda road: in_a_process(road, options.messages))
    results = {road: _spreads(own) for road, own in runs.items()}
    if options.json:
        print_json({"machine": machine(), "skipped": skipped, "roads": results})
        return
    print(f"microseconds of a message: median (p10-p90) of {options.repeats} runs")
    show(results)
    for road, package in skipped.items():
        print(f"{road}: skipped, {package} is not installed")


def _spreads(runs: list[dict[str, Figures]]) -> dict[str, dict[str, dict[str, float]]]:
    return {size: as_dicts(spreads([run[size] for run in runs])) for size in SIZES}


def show(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    columns = {"round trip": "round_trip_us", "client": "client_cpu_us", "server": "server_cpu_us"}
    for size in SIZES:
        rows = []
        for road, own in results.items():
            found = [own[size][name] for name in columns.values()]
            rows.append((road, *(Spread(s["median"], s["p10"], s["p90"]).text(0) for s in found)))
        print(f"\nan answer of {size}")
        print(text_table(("", *columns), rows))


if __name__ == "__main__":
    main()
