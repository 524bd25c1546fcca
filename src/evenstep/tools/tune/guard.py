"""Runs one command and leaves nothing of it behind. A process of its own, standard library only.

A training script starts processes that start processes: a launcher puts its ranks into sessions of
their own, and a signal to the launcher's group does not reach them. So this process becomes the one
that orphans are handed to (Linux: child subreaper): whatever the command started, and whoever of
them died, is found below it. It ends them all when the command has ended, when it is told to, and
when the process that started it is gone, which closes its standard input.

Standard input: one byte, or its end, means stop. Standard output: one line of JSON at the end.
Argument: JSON with `command`, `output` (file that takes what it prints), `scratch` (folder to
remove where the process that started this one is gone) and `grace` (seconds between asking and
killing).
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
    job = json.loads(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _report(error=f"prctl: {os.strerror(ctypes.get_errno())}")
        return
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    with open(job["output"], "ab") as output:
        try:
            leader = subprocess.Popen(
                job["command"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).pid
        except OSError as error:
            _report(error=f"{job['command'][0]}: {error.strerror}")
            return
    ended: dict[int, int] = {}
    alone = False
    while leader not in ended and not told:
        if select.select([0], [], [], _POLL)[0]:
            alone = not os.read(0, 1)
            told.append(0)
        _reap(ended)
    code = ended.get(leader)
    left = _end_all(leader, ended, job["grace"])
    if alone:
        shutil.rmtree(job["scratch"], ignore_errors=True)
    _report(returncode=code, left=left)


def _report(**values: Any) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(values), flush=True)


def _reap(ended: dict[int, int]) -> bool:
    """Notes the exit codes of all children that have ended, negative where a signal killed them.

    Returns:
        Whether there are others. Without a child there is no process below this one: those whose
        parent has ended are its children.
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
    """Ends the command's group, then all that is left below this process; gives what will not."""
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
            # Nobody is left who would tell these to end.
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
