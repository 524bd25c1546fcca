"""Plays a history again, in this folder: ``python -m replay SEED`` or ``python -m replay
service:SEED``. With ``--trace`` every step is printed."""

from __future__ import annotations

import sys
from typing import Any

import simulated_world
from histories import describe, history_of
from service_histories import service_history_of
from simulated_modules import simulated_cluster, simulated_machine


def main(text: str, *options: str) -> None:
    of_service, seed = text.startswith("service:"), int(text.removeprefix("service:"))
    history: Any = service_history_of(seed) if of_service else history_of(seed)
    with simulated_cluster() if of_service else simulated_machine():
        if "--trace" in options:
            simulated_world.trace = print
        print(describe(history, history.play()))


if __name__ == "__main__":
    main(*sys.argv[1:])
