"""A rank process in a peer's environment: ``python -m benchmarks.peers.rank JSON``.

Reads the loader that the adapter builds as fast as it comes, as a trainer whose steps take no time
would, and writes what it saw to a file. With "stop" it stops in mid-epoch: either it saves the
loader's state and leaves, or it waits for a line on stdin, while a worker is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.lib.usage import processor_seconds
from benchmarks.peers.work import Work

MARKS = 0.25, 0.75


class Seen:
    """What a rank has seen of its loader."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.steps: list[tuple[int, int]] = []
        """Of each batch, real and padded tokens."""
        self.first = 0.0
        """Seconds, when the first batch came."""
        self.marks: list[tuple[float, int, float]] = []
        """A quarter and three quarters through the epoch: when, after how many samples, and the
        processor seconds of all ranks until then. In between every loader is at work as in a long
        run, whatever it has read ahead."""

    def add(self, batch: dict[str, Any], share: int) -> None:
        """
        Args:
            share: samples of an epoch that are one rank's, about.
        """
        self.first = self.first or time.time()
        self.ids += [int(number) for number in batch["id"]]
        if len(self.marks) < len(MARKS) and len(self.ids) >= MARKS[len(self.marks)] * share:
            used = processor_seconds(int(os.environ["PEERS_PARENT"]))
            self.marks.append((time.time(), len(self.ids), used))
        if "lengths" in batch:
            real, padded = sum(map(int, batch["lengths"])), batch["input_ids"].numel()
            self.steps.append((real, padded))


def read(adapter: Any, given: dict[str, Any]) -> None:
    work = Work(**given["work"])
    loader = getattr(adapter, work.workload)(work)
    state = Path(given.get("state", ""))
    if given.get("restore"):
        getattr(loader, adapter.STATE[1])(pickle.loads(state.read_bytes()))
    seen, stop, most = Seen(), given.get("stop"), work.samples // work.ranks
    for batch in loader:
        seen.add(batch, most)
        if stop and len(seen.ids) >= given["at"] * most:
            if stop == "save":
                state.write_bytes(pickle.dumps(getattr(loader, adapter.STATE[0])()))
                break
            print("ready", flush=True)
            sys.stdin.readline()
            stop = None
        if given.get("heartbeat"):
            Path(given["heartbeat"]).touch()
        if work.workload == "mixture" and len(seen.ids) >= most:
            break
    Path(given["out"]).write_text(json.dumps(vars(seen)))
    if hasattr(adapter, "close"):
        adapter.close(loader)


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
