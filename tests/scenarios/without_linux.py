"""Takes from a process what evenstep uses and only Linux has, and says that it is another system.

A script imports this before all else. A process that it spawns imports the script before all else,
so they are all the same.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import urllib.request  # noqa: F401  later it would look for what macOS has

for name in ("memfd_create", "posix_fallocate", "fork", "forkpty", "pidfd_open", "eventfd"):
    if hasattr(os, name):
        delattr(os, name)


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Has whatever opens or lists something of /proc fail as if it was not there."""
    if event in ("open", "os.listdir", "os.scandir"):
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else ""
        if path.startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)


exists, isdir = os.path.exists, os.path.isdir
os.path.exists = lambda path: not str(path).startswith("/proc") and exists(path)
os.path.isdir = lambda path: not str(path).startswith("/proc") and isdir(path)
sysconfig.get_config_vars()  # which are kept, and which macOS has elsewhere
sys.addaudithook(refuse)
sys.platform = "darwin"
