"""Plays a history again, in this folder: ``python -m replay SEED``, ``python -m replay
service:SEED``, or the text a failure prints.

With ``--trace`` every step is printed; with ``--shrink`` a smaller history that goes wrong, too.
"""

from __future__ import annotations

import sys

import simulated_world
from histories import History, describe, history_of
from service_histories import ServiceHistory, service_history_of
from shrinking import shrink
from simulated_modules import simulated_cluster, simulated_machine


def main(text: str, *options: str) -> None:
    of_service, seed = text.startswith("service:"), text.removeprefix("service:")
    if of_service:
        number = seed.isdecimal()
        history = service_history_of(int(seed)) if number else ServiceHistory.from_text(text)
    else:
        history = history_of(int(text)) if text.isdecimal() else History.from_text(text)
    with simulated_cluster() if of_service else simulated_machine():
        if "--trace" in options:
            simulated_world.trace = print
        played = history.play()
        if played.violation is not None and "--shrink" in options:
            history = shrink(history, played)
            played = history.play()
    print(describe(history, played))


if __name__ == "__main__":
    main(*sys.argv[1:])
