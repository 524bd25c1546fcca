"""Plays a history again, in this folder: ``python -m replay SEED``, or the text a failure prints.

With ``--trace`` every step is printed; with ``--shrink`` a smaller history that goes wrong, too.
"""

from __future__ import annotations

import sys

import simulated_world
from histories import History, describe, history_of, play
from shrinking import shrink
from simulated_modules import simulated_machine


def main(text: str, *options: str) -> None:
    history = history_of(int(text)) if text.isdecimal() else History.from_text(text)
    with simulated_machine():
        if "--trace" in options:
            simulated_world.trace = print
        played = play(history)
        if played.violation is not None and "--shrink" in options:
            history = shrink(history, played)
            played = play(history)
    print(describe(history, played))


if __name__ == "__main__":
    main(*sys.argv[1:])
