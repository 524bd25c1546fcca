"""What runs in a loader's process: ``python -m evenstep.service.processes.loader_main``.

Its standard input has the loader's job, and then stays open for as long as the parent wants it; its
standard output has one answer. What users' functions print goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.processes import kill_children
from evenstep.service.backend_common import LOADER_THREADS
from evenstep.service.remote.role_host import RoleHost, sendable, unpickled_job
from evenstep.service.remote.role_makers import make_loader

_CHECK_INTERVAL = 0.5  # seconds between checks of the parent


def main() -> None:
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    host = RoleHost()
    answer: Any
    try:
        job, paths = pickle.load(asked)
        host.make_role(make_loader, unpickled_job(job, paths), threads=LOADER_THREADS)
        answer = host.open_sockets("loader")
    except EvenstepError as error:
        answer = error
    except Exception as error:
        answer = sendable(error)
    answers.write(pickle.dumps(answer))
    answers.close()
    if not isinstance(answer, Exception):
        _wait_for_end(parent)
    host.close()
    kill_children()
    os._exit(0)  # threads that users' functions have begun do not keep it


def _wait_for_end(parent: int) -> None:
    """Returns when the parent closes its end of the pipe, or has ended. A process that it forked
    may hold a copy of that end, so the parent itself is looked for, too."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while os.getppid() == parent:
        if poll.poll(1000 * _CHECK_INTERVAL):
            return


if __name__ == "__main__":
    main()
