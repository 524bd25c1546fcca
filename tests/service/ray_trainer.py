"""A trainer's process for the tests of the service on Ray: takes three steps, waits, takes more."""

from __future__ import annotations

import json
import sys

from service_world import comparable, steps_of

import evenstep.service as es


def main(address: str, job: str) -> None:
    client = es.Client(address, job)  # the rank comes as torchrun gives it
    taken = steps_of(client, 3)
    print(json.dumps(comparable(taken), default=repr), flush=True)
    while sys.stdin.readline().strip() == "continue":
        try:
            said = comparable(steps_of(client, 3))
        except Exception as error:
            said = [type(error).__name__, str(error)]
        print(json.dumps(said, default=repr), flush=True)
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
