"""`Finding`: what a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Finding:
    """All is well where there is no remedy."""

    check: str
    """What was looked at, in two words."""
    found: str
    remedy: str = ""
    breaks: bool = False
    """Whether every job fails. Else only some do, such as those on several hosts."""

    @property
    def level(self) -> str:
        """breaks, warning or ok."""
        return "breaks" if self.breaks else "warning" if self.remedy else "ok"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "check": self.check,
            "level": self.level,
            "found": self.found,
            "remedy": self.remedy or None,
        }
