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

from benchmarks.peers.work import Work, begun, processor_seconds


class Seen:
    """What a rank has seen of its loader."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.steps: list[tuple[int, int]] = []
        """Of each batch, real and padded tokens."""
        self.first = self.last = 0.0
        """Seconds, when the first and the last batch came."""

    def add(self, batch: dict[str, Any]) -> None:
        self.first = self.first or time.time()
        self.ids += [int(number) for number in batch["id"]]
        if "lengths" in batch:
            real, padded = sum(map(int, batch["lengths"])), batch["input_ids"].numel()
            self.steps.append((real, padded))
        self.last = time.time()


def read(adapter: Any, given: dict[str, Any]) -> None:
    work = Work(**given["work"])
    loader = getattr(adapter, work.workload)(work)
    state = Path(given.get("state", ""))
    if given.get("restore"):
        adapter.restore(loader, pickle.loads(state.read_bytes()))
    seen, stop, most = Seen(), given.get("stop"), work.samples // work.ranks
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
    used = processor_seconds(os.getpid(), itself=True)
    start = json.loads(begun().read_text()) if begun().exists() else None
    Path(given["out"]).write_text(json.dumps({**vars(seen), "used": used, "begun": start}))
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
