"""A cable between two hosts: a process that passes frames between a TAP device in each network.

    python cable.py PID DEVICE PID DEVICE

A line of JSON on stdin says what becomes of frames from then on, such as
``[{"delay": 0.05, "jitter": 0.01, "loss": 0.01}, {"cut": true}]``: of those from the first host to
the second, and of those of the other way. Each line is answered by how many frames have passed, and
how many are lost, each way.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import struct
import sys
import time
from contextlib import suppress

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x1002
LONGEST = 1 << 16
AT_ONCE = 64
"""Frames that are read before the other way has its turn."""


def enter(pid: object, *kinds: str) -> None:
    """Moves this process into namespaces of another one, such as "net" and "uts"."""
    for kind in kinds:
        with open(f"/proc/{pid}/ns/{kind}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns to {space.name}")


def tap(pid: str, name: str) -> int:
    """A new device in the network of a process; its frames are read and written."""
    enter(pid, "net")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP_WITHOUT_HEADER))
    return device


class Way:
    """Frames from one host to the other. Those with jitter may overtake each other."""

    def __init__(self, source: int, target: int, seed: int) -> None:
        self._source, self._target = source, target
        self._random = random.Random(seed).random
        self._under_way: list[tuple[float, int, bytes]] = []
        self._numbers = itertools.count()
        self.passed = self.lost = 0
        self.change()

    def change(
        self, *, delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0, cut: bool = False
    ) -> None:
        """
        Args:
            delay, jitter: seconds that a frame takes, and up to so many more.
            loss: the probability that it is lost.
            cut: whether all are lost, those under way too.
        """
        self._delay, self._jitter, self._loss = delay, jitter, 1.0 if cut else loss
        if cut:
            self.lost += len(self._under_way)
            self._under_way.clear()

    def take(self) -> None:
        """Takes what the source has sent."""
        now = time.monotonic()
        with suppress(BlockingIOError):
            for _ in range(AT_ONCE):
                frame = os.read(self._source, LONGEST)
                if self._random() < self._loss:
                    self.lost += 1
                else:
                    due = now + self._delay + self._jitter * self._random()
                    heapq.heappush(self._under_way, (due, next(self._numbers), frame))

    def pass_on(self) -> float | None:
        """Gives the target what has arrived; returns the seconds until the next frame arrives."""
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            with suppress(OSError):  # its device is down
                os.write(self._target, heapq.heappop(self._under_way)[2])
            self.passed += 1
        return self._under_way[0][0] - now if self._under_way else None


def main() -> None:
    first, second = tap(*sys.argv[1:3]), tap(*sys.argv[3:5])
    ways = Way(first, second, 1), Way(second, first, 2)
    selector = selectors.DefaultSelector()
    for device, way in zip((first, second), ways):
        selector.register(device, selectors.EVENT_READ, way)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("laid", flush=True)
    while True:
        waits = [seconds for way in ways if (seconds := way.pass_on()) is not None]
        for key, _ in selector.select(min(waits, default=None)):
            if key.data is not None:
                key.data.take()
            elif line := sys.stdin.readline():
                for way, changes in zip(ways, json.loads(line)):
                    way.change(**changes)
                print(json.dumps([[way.passed, way.lost] for way in ways]), flush=True)
            else:
                return


if __name__ == "__main__":
    main()
