"""`examine`: all checks, one after another."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable

from evenstep.tools.doctor import limits, software
from evenstep.tools.doctor.finding import Examination
from evenstep.tools.doctor.trial import trial

CHECKS = (
    software.releases,
    software.torch_build,
    limits.open_files,
    limits.tasks,
    limits.memory,
    limits.processors,
)
_ORDER = ("breaks", "warning", "ok")


def examine(tell: Callable[[str], None] = lambda line: None) -> Examination:
    """Checks this machine and environment: see the package.

    Args:
        tell: takes lines about what is done now.
    """
    found = [each for check in CHECKS for each in check()]
    if not any(each.breaks for each in found):  # it would fail for the reason that is known
        tell("running a job of two ranks, for some seconds ...")
        found += trial()
    return Examination(
        host=socket.gethostname(),
        system=platform.platform(),
        releases=software.installed(),
        findings=tuple(sorted(found, key=lambda each: _ORDER.index(each.level))),
    )
