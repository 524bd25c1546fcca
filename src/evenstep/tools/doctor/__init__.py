"""What would bite a job on this machine, and the remedy.

```
finding      one result: what was found, and what to do about it
software     Python, torch and other packages; whether PyTorch's attention is slow where shapes
             vary: trainers warn of it, too; files that this process may have open
trial        a small job of two ranks: it fails where the system forbids what all jobs do
```

`examine` runs all of these. There is no check for what the trial job meets itself: shared memory,
folders, and the network of one host.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable

from evenstep.tools.doctor import software
from evenstep.tools.doctor.finding import Examination, Finding
from evenstep.tools.doctor.trial import trial

__all__ = ["Examination", "Finding", "examine"]

CHECKS = (
    software.releases,
    software.torch_build,
    software.open_files,
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
