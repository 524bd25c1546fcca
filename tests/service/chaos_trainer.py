"""A trainer's process among faults: writes a line for each step, and goes on where it has ended."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from service_world import comparable

import evenstep.service as es
from evenstep.service.transport import endpoint


def line_of(step: es.ServiceStep, micro_batches: list[Any]) -> dict[str, Any]:
    """What a rank was given in a step."""
    given = repr(comparable([(micro_batches, step)]))
    return {
        "step": step.step,
        "samples": repr(step.sample_ids),
        "checksum": zlib.crc32(given.encode()),
    }


def main(address: str, job: str, steps: str, seconds: str, file: str) -> None:
    if away := "ELSEWHERE" in os.environ:
        endpoint.machine = lambda: "another host"  # whose trainers reach roles by TCP alone
    path = Path(file)
    done = path.read_text().splitlines() if path.exists() else []
    if len(done) == int(steps):  # killed between its last line and its end
        return
    with es.Client(address, job, step=len(done)) as client, path.open("a") as log:
        for micro_batches, step in client:
            written = line_of(step, micro_batches)
            log.write(
                json.dumps({**written, "waited": step.wait_seconds, "at": time.time()}) + "\n"
            )
            log.flush()
            time.sleep(float(seconds))  # of training
            if step.step + 1 == int(steps):
                break
    assert not away or "ray" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
