"""The process of a loader: ``python -m evenstep.service.backends.processes.loader_main FD``.

Through the connection FD it receives the job of a loader to run. A standby receives those of all
loaders, reports when it has read them, and receives the one to run when a loader has died. The
connection stays open for as long as the parent wants the process. What users' functions print goes
to standard error.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from evenstep.processes import kill_children
from evenstep.service.job.roles import LOADER_THREADS
from evenstep.service.remote.child_process import connection_to_parent, tell
from evenstep.service.remote.role_host import RoleHost, unpickled_job
from evenstep.service.remote.role_makers import make_loader, make_standby

_CHECK_INTERVAL = 0.5  # seconds between checks of the parent


def main() -> None:
    parent, given = os.getppid(), connection_to_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    host = RoleHost()
    try:
        if _play(given, host, parent):
            _parent_says(given, parent)
    finally:
        host.close()
        kill_children()
        os._exit(0)  # threads that users' functions have started do not keep it


def _play(given: Connection, host: RoleHost, parent: int) -> bool:
    """Whether it runs a loader."""
    jobs: Sequence[bytes]
    answer: Any
    try:
        (jobs, standby), paths = pickle.loads(given.recv_bytes())
        held, played = None, jobs[0]
        if standby:
            held = make_standby([unpickled_job(job, paths) for job in jobs])
            tell(given, held.opened)
            if not _parent_says(given, parent):
                return False
            played = pickle.loads(given.recv_bytes())
            tell(given, None)
        job = unpickled_job(played, paths)
        host.make_role(make_loader, job, held, threads=LOADER_THREADS)
        answer = host.open_sockets("loader")
    except EOFError:
        return False
    except Exception as error:
        answer = error
    tell(given, answer)
    return not isinstance(answer, Exception)


def _parent_says(given: Connection, parent: int) -> bool:
    """Waits until the parent sends something or closes its end, or has ended: False if it has. A
    process that it forked may hold a copy of that end, so the parent itself is looked for, too."""
    while os.getppid() == parent:
        if given.poll(_CHECK_INTERVAL):
            return True
    return False


if __name__ == "__main__":
    main()
