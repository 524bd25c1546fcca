"""Handles SIGTERM and SIGHUP in commands that must end other processes before they exit."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end this process like Ctrl-C: after the block has cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
