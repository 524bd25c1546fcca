"""How long after a fault every surviving rank has an error, and what the job leaves behind.

Two ranks train under Gloo, each with a batcher process and two workers; a step takes 10 ms. Once
both train, something goes wrong on rank 1. The clock runs from that moment (a signal is sent, a
worker begins to hang, a dataset raises) to the moment when the training loop of a surviving rank
has the exception. After the job has ended, the benchmark looks for leftovers: processes, files in
/dev/shm and in its temporary folder.

    own     the error on rank 1, where it lives
    other   the error on rank 0
    gone    from the fault to the moment when nothing of the job is left, at most

Every run is a new job. The exit status is 1 if a rank hangs or anything is left behind.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

import evenstep
import evenstep.loader  # now, and not in every rank that is forked
from benchmarks.lib.report import Table, progress, show
from benchmarks.loader.fault_cases import (
    ALL_WAIT,
    CASES,
    HANGING,
    LEAVES,
    PROCESSES,
    TIMEOUT,
    Case,
    Collate,
    Fault,
    Samples,
)

STEP = 0.01  # seconds
GRACE = 10.0  # seconds within which everything must be gone
HANGS = 30.0  # seconds without an error after which a rank counts as hanging
WORDS = 90  # of an error in the table, in characters


HUNG = "it hangs"
GONE = psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD
WHOSE = {"own", "other"}


def train(rank: int, case: Case, fault: Fault, folder: Path, results: Connection) -> None:
    """The life of a rank. Sends what it has started, then its error."""
    os.setsid()  # so that all it starts can be found
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    mine = fault if rank == 1 or case.name == ALL_WAIT else None
    loader = evenstep.DataLoader(
        Samples(mine),
        policy=evenstep.TokenBudget(max_tokens=1024),
        collate_fn=Collate(mine),
        memory=evenstep.Memory(buffer_size=64),
        **case.workers,
        timeout=TIMEOUT if case.name in HANGING else 0,
    )
    try:
        for number, _ in enumerate(loader):
            if number == 3:
                results.send(children(os.getpid()))
            if mine and mine.happens("training loop raises"):
                raise ZeroDivisionError("no gradient")
            if mine and mine.happens(LEAVES):
                break
            time.sleep(STEP)
    except BaseException as error:
        results.send((time.monotonic(), type(error).__name__, str(error)))
        sys.exit(1)


def run(case: Case) -> dict[str, Any]:
    """One job, from its start to the look for leftovers."""
    fault = Fault(case.name)
    shared = shared_files()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        ends = [PROCESSES.Pipe(duplex=False) for _ in range(2)]
        ranks = [
            PROCESSES.Process(target=train, args=(rank, case, fault, folder, ends[rank][1]))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for _, theirs in ends:
            theirs.close()
        pids = {int(rank.pid or 0) for rank in ranks}
        try:
            started = [receive(results) for results, _ in ends]
            if None in started:
                sys.exit(f"{case.name}: the job did not start\n{logs(folder)}")
            begun = strike(case, fault, ranks[1].pid or 0, started[1])
            errors = {"other": receive(ends[0][0])}
            if case.fails_itself:
                errors["own"] = receive(ends[1][0])
            deadline = time.monotonic() + GRACE

            def look() -> list[str]:
                files = [str(path) for path in (folder / "tmp").glob("pymp-*")]
                return [*map(str, survivors(pids)), *files, *(shared_files() - shared)]

            while (left := look()) and time.monotonic() < deadline:
                time.sleep(0.02)
            gone = time.monotonic()
        finally:
            for pid in survivors(pids):
                os.kill(pid, signal.SIGKILL)
            for rank in ranks:
                rank.join()
    at = begun or fault.at()
    return {
        "gone_s": gone - at,
        "left": left,
        **{
            whose: {"seconds": error[0] - at, "error": error[1], "message": error[2]}
            if error is not None
            else {"seconds": HANGS, "error": HUNG, "message": "no error"}
            for whose, error in errors.items()
        },
    }


def strike(case: Case, fault: Fault, rank: int, batchers: list[int]) -> float:
    """Causes the fault. Returns the moment, or 0.0 if the fault itself reports it."""
    if case.signal is None:
        fault.begin()
        return 0.0
    if case.name == ALL_WAIT:
        fault.begin()
        time.sleep(1.5)  # until no rank has a step left
    target = {
        "rank": lambda: rank,
        "batcher": lambda: batchers[0],
        "worker": lambda: children(batchers[0])[0],
    }[case.target]()
    begun = time.monotonic()
    os.kill(target, case.signal)
    return begun


def receive(results: Connection) -> Any:
    """What a rank says, or None if it hangs or is gone."""
    try:
        return results.recv() if results.poll(HANGS) else None
    except EOFError:
        return None


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


def children(parent: int) -> list[int]:
    return sorted(child.pid for child in psutil.Process(parent).children())


def survivors(sessions: set[int]) -> list[int]:
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) in sessions and process.info["status"] not in GONE:
                found.append(process.pid)
    return found


def shared_files() -> set[str]:
    """Files in /dev/shm that no living process has mapped: those belong to some other job."""
    names = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    for pid in psutil.pids() if names else ():
        with suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            names -= {line.split()[-1] for line in maps if line}
    return names


def rows(name: str, runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each rank that lives to see an error."""
    left = sum(len(run["left"]) for run in runs)
    gone = f"{left} left" if left else f"{max(run['gone_s'] for run in runs):.2f}"
    made = []
    for whose in sorted(WHOSE):
        taken = [run[whose] for run in runs if whose in run]
        if taken:
            seconds = [one["seconds"] for one in taken]
            errors = " or ".join(sorted({one["error"] for one in taken}))
            error = f"{errors}: {' '.join(taken[0]['message'].split())}"
            times = [f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}"]
            made.append([name, whose, *times, gone, error[:WORDS]])
    return made


def main() -> None:
    names = [case.name for case in CASES]
    arguments = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m benchmarks.loader.fault_times --runs 20 --faults 'rank killed'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--runs", type=int, default=5, help="jobs for each fault")
    arguments.add_argument("--faults", nargs="+", choices=names, default=names, metavar="FAULT")
    options = arguments.parse_args()
    found: list[list[str]] = []
    hung, left = [], []
    for case in (case for case in CASES if case.name in options.faults):
        runs = []
        for number in range(options.runs):
            progress(f"{case.name}, {number + 1}/{options.runs}")
            runs.append(run(case))
        found += rows(case.name, runs)
        if any(run[whose]["error"] == HUNG for run in runs for whose in WHOSE & run.keys()):
            hung.append(case.name)
        if any(run["left"] for run in runs):
            left.append(case.name)
    columns = ["fault on rank 1", "rank", "median s", "max s", "gone s", "error"]
    title = f"Seconds from the fault to the error on a surviving rank; {options.runs} jobs each"
    show(Table(columns, found, title), as_json=False)
    if hung or left:
        sys.exit(f"hung: {hung}; left something behind: {left}")


if __name__ == "__main__":
    main()
