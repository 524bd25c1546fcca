"""`Finding`: what a check found. `Examination`: all that was found on a machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from evenstep.version import __version__


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All is well where there is no remedy."""

    check: str
    """What was looked at, in two words."""
    found: str
    remedy: str = ""
    breaks: bool = False
    """Whether every job fails. Else only some do, such as large ones."""

    @property
    def level(self) -> str:
        """breaks, warning or ok."""
        return "breaks" if self.breaks else "warning" if self.remedy else "ok"


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
        findings = [
            {**asdict(each), "level": each.level, "remedy": each.remedy or None}
            for each in self.findings
        ]
        found = {**asdict(self), "breaks": self.breaks, "findings": findings}
        return {"evenstep": __version__, **found}
