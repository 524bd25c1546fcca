"""A rank process in a peer's environment: ``python -m benchmarks.peers.rank JSON``.

Reads the loader that the adapter builds as fast as it comes, as a trainer whose steps take no time
would, and writes what it saw to a file. With "stop" it stops in mid-epoch: either it saves the
loader's state and leaves, or it waits for a line on stdin, while a worker is killed.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.work import Work

WINDOW = 0.2, 0.8
"""Part of the epoch over which speed is measured: reading ahead is at both ends the same."""


def processor_seconds() -> float:
    """Of this process and all that it has started."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for process in own.children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return float(total)


class Seen:
    """What a rank has seen of its loader."""

    def __init__(self, work: Work) -> None:
        self._expected = work.samples / work.ranks
        self.ids: list[int] = []
        self.steps: list[tuple[int, int]] = []
        """Of each batch, real and padded tokens."""
        self.marks: list[tuple[int, float, float]] = []
        """Samples, seconds and processor seconds at either end of the window."""
        self.first = 0.0

    def add(self, batch: dict[str, Any]) -> None:
        self.first = self.first or time.time()
        self.ids += [int(number) for number in batch["id"]]
        if "lengths" in batch:
            real, padded = sum(map(int, batch["lengths"])), batch["input_ids"].numel()
            self.steps.append((real, padded))
        if len(self.marks) < 2 and len(self.ids) >= WINDOW[len(self.marks)] * self._expected:
            self.marks.append((len(self.ids), time.time(), processor_seconds()))

    def record(self) -> dict[str, Any]:
        return {"ids": self.ids, "steps": self.steps, "marks": self.marks, "first": self.first}


def read(adapter: Any, given: dict[str, Any]) -> dict[str, Any]:
    work = Work(**given["work"])
    loader = getattr(adapter, work.workload)(work)
    state = Path(given.get("state", ""))
    if given.get("restore"):
        adapter.restore(loader, pickle.loads(state.read_bytes()))
    seen, stop, most = Seen(work), given.get("stop"), work.samples // work.ranks
    for batch in loader:
        seen.add(batch)
        if stop and len(seen.ids) >= given["at"] * most:
            if stop == "save":
                state.write_bytes(pickle.dumps(adapter.state(loader)))
                break
            print("ready", flush=True)
            sys.stdin.readline()
            stop = None
        if given.get("heartbeat"):
            Path(given["heartbeat"]).touch()
        if work.workload == "mixture" and len(seen.ids) >= most:
            break
    found = seen.record()
    Path(given["out"]).write_text(json.dumps(found))
    if hasattr(adapter, "close"):
        adapter.close(loader)
    return found


def main() -> None:
    given = json.loads(sys.argv[1])
    try:
        adapter = importlib.import_module(f"benchmarks.peers.adapters.{given['adapter']}")
        if "raw" in given:
            adapter.convert(given["workload"], Path(given["raw"]), Path(given["to"]))
        else:
            read(adapter, given)
    except BaseException as error:
        last = traceback.format_exc().strip()
        Path(given["out"]).with_suffix(".error").write_text(last)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
