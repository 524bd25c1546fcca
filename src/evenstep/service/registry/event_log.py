"""`EventLog`: what happened to the roles of a job, a line of JSON each in a file."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from evenstep.errors import ConfigurationError


class EventLog:
    """Each line has `time`, seconds since 1970, and `event`."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """
        Args:
            path: appended to; None writes nothing.

        Raises:
            ConfigurationError: it cannot be written.
        """
        self._path = path
        if path is not None:
            try:
                with open(path, "a"):
                    pass
            except OSError as error:
                raise ConfigurationError(
                    f"events={os.fspath(path)!r} cannot be written ({error}); give a file in a "
                    "folder that is there"
                ) from error

    def add(self, event: str, **about: Any) -> None:
        """Writes what happened, at once."""
        if self._path is not None:
            line = json.dumps({"event": event, "time": time.time(), **about})
            with open(self._path, "a") as file:
                file.write(line + "\n")
