"""Plays a history again, in this folder: ``python -m replay SEED``, ``python -m replay
service:SEED``, or ``python -m replay service:SEED:POLICY``. With ``--trace`` every step is printed.
"""

from __future__ import annotations

import sys

import simulated_world
from loader_histories import loader_history_of
from service_histories import by_policy, service_history_of
from simulated_modules import simulated_cluster, simulated_machine


def main(text: str, *options: str) -> None:
    *of_service, seed = text.split(":")[:2]
    history = service_history_of(int(seed)) if of_service else loader_history_of(int(seed))
    for policy in text.split(":")[2:]:
        history = by_policy(history, policy)
    with simulated_cluster() if of_service else simulated_machine():
        if "--trace" in options:
            simulated_world.trace = print
        print(history.describe(history.play()))


if __name__ == "__main__":
    main(*sys.argv[1:])
