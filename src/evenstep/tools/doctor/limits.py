"""How many files this process may have open."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evenstep.tools.doctor.finding import Finding

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]

_FEW_FILES = 128
"""Below it, a rank with 16 workers does not start."""
_SOME_FILES = 1024
"""Below it, windows of some thousand samples do not fit: each slab that holds some is a file."""


def open_files() -> Iterator[Finding]:
    if resource is None:
        return
    soft, hard = (
        math.inf if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    found, remedy = f"{soft:,} may be open (ulimit -n)", ""
    if soft < _SOME_FILES:
        found += ": too few for many workers or large windows"
        remedy = f"ulimit -n {min(hard, 65536)}, before the job starts"
        if hard < _SOME_FILES:
            remedy = f"have the hard limit of {hard:,} raised (ulimit -Hn), then the soft one"
    yield Finding(check="open files", found=found, remedy=remedy, breaks=soft < _FEW_FILES)
