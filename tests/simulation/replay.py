"""Plays a history again, in this folder: ``python -m replay SEED``, ``python -m replay
service:SEED``, or the text a failure prints.

With ``--trace`` every step is printed; with ``--shrink`` a smaller history that goes wrong, too.
"""

from __future__ import annotations

import sys

import simulated_world
from histories import History
from loader_histories import LoaderHistory, loader_history_of
from service_histories import service_history_of
from simulated_modules import simulated_cluster, simulated_machine


def main(text: str, *options: str) -> None:
    if text.isdecimal():
        history = loader_history_of(int(text))
    elif text.startswith("service:"):
        history = service_history_of(int(text.removeprefix("service:")))
    else:
        history = History.from_text(text)
    of_loader = isinstance(history, LoaderHistory)
    with simulated_machine() if of_loader else simulated_cluster():
        if "--trace" in options:
            simulated_world.trace = print
        played = history.play()
        if played.violation is not None and "--shrink" in options:
            history = history.smaller(played)
            played = history.play()
    print(history.describe(played))


if __name__ == "__main__":
    main(*sys.argv[1:])
