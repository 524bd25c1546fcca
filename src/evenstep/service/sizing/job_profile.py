"""`JobProfile`: what the sources of a job cost, as measured, and of which data that was."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError, MismatchError
from evenstep.files import MeasuredFile
from evenstep.strategy.loaders import SourceProfile

_NAMED = 5  # sources, in messages
_FILE = MeasuredFile(
    format="evenstep-job-profile",
    name="profile of a job",
    version=1,
    again="measure the job again by `evenstep service profile JOB`",
    by_hand="To plan by other numbers, give `plan_loaders` a JobProfile of your own.",
)


@dataclass(frozen=True, kw_only=True)
class JobProfile:
    """See the module docstring. Made by `profile`."""

    process_bytes: int
    """Memory of a loader or a worker that has opened no source yet."""
    sources: Mapping[str, SourceProfile]
    fingerprints: Mapping[str, Mapping[str, Any]]
    """By name of the source, as `SourceReader.fingerprint`."""

    def of(self, names: Sequence[str]) -> list[SourceProfile]:
        """[names] profiles of these sources.

        Raises:
            MismatchError: one was not measured.
        """
        missing = [name for name in names if name not in self.sources]
        if missing:
            raise MismatchError(
                f"the profile does not have {_named(missing)}; {_FILE.again}, which measures what "
                "is missing"
            )
        return [self.sources[name] for name in names]

    def check(self, now: Mapping[str, Mapping[str, Any]]) -> None:
        """
        Args:
            now: fingerprints of the job's sources.

        Raises:
            MismatchError: sources were not measured, or their data or transform was another; the
                error names them.
        """
        stale = [name for name, found in now.items() if self.fingerprints.get(name) != found]
        if stale:
            raise MismatchError(
                f"{_named(stale)} changed since the profile was made, in data or in transform; "
                f"{_FILE.again}, which measures what has changed"
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file, whole or not at all."""
        _FILE.write(path, self.as_dict())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> JobProfile:
        """
        Raises:
            ConfigurationError: there is no such file, or it was changed since.
        """
        content = _FILE.read(path)
        try:
            return cls(
                process_bytes=content["process_bytes"],
                sources={name: SourceProfile(**s) for name, s in content["sources"].items()},
                fingerprints=content["fingerprints"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({type(error).__name__}: {error}); {_FILE.again}"
            ) from error

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "process_bytes": self.process_bytes,
            "sources": {name: each.as_dict() for name, each in self.sources.items()},
            "fingerprints": {name: dict(each) for name, each in self.fingerprints.items()},
        }


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"source{'' if len(names) == 1 else 's'} {shown}{more}"
