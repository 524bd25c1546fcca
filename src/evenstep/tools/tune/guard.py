"""Runs one command and leaves none of its processes behind. A script of its own, with the standard
library only.

A training script starts processes that start further processes. A launcher puts its ranks into
separate sessions, which a signal to the launcher's group does not reach. So this process adopts
orphans (a child subreaper on Linux): everything that the command started, directly or not, stays
below it. It ends all of them when the command has ended, when it is asked to, and when its parent
process is gone, which closes its standard input.

Standard input: one byte, or its end, means stop. Standard output: one line of JSON at the end.
Argument: JSON with `command`, `output` (file for its output), `scratch` (folder to remove if the
parent is gone) and `grace` (seconds between asking and killing).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GIVE_UP = 30.0  # seconds after the first SIGKILL
_POLL = 0.05


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _report(error=f"prctl: {os.strerror(ctypes.get_errno())}")
        return
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    with open(arguments["output"], "ab") as output:
        try:
            leader = subprocess.Popen(
                arguments["command"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).pid
        except OSError as error:
            _report(error=f"{arguments['command'][0]}: {error.strerror}")
            return
    ended: dict[int, int] = {}
    orphaned = False
    while leader not in ended and not stop:
        if select.select([0], [], [], _POLL)[0]:
            orphaned = not os.read(0, 1)
            stop.append(0)
        _reap(ended)
    code = ended.get(leader)
    left = _end_all(leader, ended, arguments["grace"])
    if orphaned:
        shutil.rmtree(arguments["scratch"], ignore_errors=True)
    _report(returncode=code, left=left)


def _report(**values: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(values), flush=True)


def _reap(ended: dict[int, int]) -> bool:
    """Records the exit codes of all children that have ended, negative if a signal killed them.

    Returns:
        Whether other children are left. Without children there is no process below this one, since
        orphans become its children.
    """
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return False


def _end_all(leader: int, ended: dict[int, int], grace: float) -> list[int]:
    """Ends the command's group, then all processes left below this one; returns survivors."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace
    asked: set[int] = set()
    while True:
        if not _reap(ended):
            return []
        left = _descendants()
        if time.monotonic() > deadline + _GIVE_UP:
            return left
        if time.monotonic() > deadline:
            _send(left, signal.SIGKILL)
        elif leader in ended:
            # The leader, which could have asked these to end, is gone.
            _send([pid for pid in left if pid not in asked], signal.SIGTERM)
            asked |= set(left)
        time.sleep(_POLL / 2)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """All living processes below this one."""
    children: dict[int, list[int]] = {}
    dead = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            dead.add(int(name))
    below, found = [os.getpid()], []
    while below:
        offspring = children.get(below.pop(), [])
        below += offspring
        found += [pid for pid in offspring if pid not in dead]
    return found


if __name__ == "__main__":
    main()
