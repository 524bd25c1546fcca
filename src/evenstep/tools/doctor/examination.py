"""`examine`: all checks, one after another."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenstep.tools.doctor import folders, limits, network, software
from evenstep.tools.doctor.finding import Finding
from evenstep.tools.doctor.trial import trial
from evenstep.version import __version__

_CHECKS = (
    software.releases,
    software.torch_build,
    software.encoding,
    folders.shared_memory,
    folders.temporary_folder,
    limits.open_files,
    limits.tasks,
    limits.memory,
    limits.processors,
    network.loopback,
    network.host_name,
    network.interface,
    network.master,
)
_ORDER = ("breaks", "warning", "ok")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found on a machine, the worst first."""

    host: str
    system: str
    releases: dict[str, str]
    """Installed, by package."""
    findings: tuple[Finding, ...]

    @property
    def breaks(self) -> bool:
        """Whether something breaks every job."""
        return any(each.breaks for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "evenstep": __version__,
            "host": self.host,
            "system": self.system,
            "releases": self.releases,
            "breaks": self.breaks,
            "findings": [each.as_dict() for each in self.findings],
        }


def examine(tell: Callable[[str], None] = lambda line: None) -> Examination:
    """Checks this machine and environment: see the package.

    Args:
        tell: takes lines about what is done now.
    """
    found = [each for check in _CHECKS for each in check()]
    if not any(each.breaks for each in found):  # it would fail for the reason that is known
        tell("running a job of two ranks, for some seconds ...")
        found += trial()
    return Examination(
        host=socket.gethostname(),
        system=platform.platform(),
        releases=software.installed(),
        findings=tuple(sorted(found, key=lambda each: _ORDER.index(each.level))),
    )
