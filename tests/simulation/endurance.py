"""Plays histories for as long as one likes, and says how many and what was in them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from histories import Played, describe
from shrinking import shrink

SOAK_SECONDS = float(os.environ.get("EVENSTEP_SIMULATION_SECONDS", "300"))
_FIRST = int(os.environ.get("EVENSTEP_SIMULATION_SEED", "100000"))


def check(history: Any) -> Played:
    played: Played = history.play()
    if played.violation is not None:
        print(describe(history, played))
        smaller = shrink(history, played)
        raise AssertionError(describe(smaller, smaller.play()))
    return played


def run_for_long(history_of: Callable[[int], Any]) -> None:
    begin, cpu, seed = time.monotonic(), time.process_time(), _FIRST
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    while time.monotonic() < begin + SOAK_SECONDS:
        played = check(history_of(seed))
        seed += 1
        total.update(steps=played.scheduled, training_steps=played.trained)
        faults += played.faults
        errors += played.errors
        seconds = time.process_time() - cpu
        if (seed - _FIRST) % 500 == 0:
            print(f"{seed - _FIRST} histories, {total['steps']} steps", file=sys.stderr, flush=True)
    report: dict[str, Any] = {
        "histories": seed - _FIRST,
        **total,
        "faults": dict(faults),
        "errors": dict(errors),
        "seconds": round(time.monotonic() - begin),
        "processor_seconds": round(seconds),
        "histories_per_processor_second": round((seed - _FIRST) / seconds, 1),
    }
    print(json.dumps(report, indent=1), file=sys.stderr)
