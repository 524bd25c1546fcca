"""`RunLog`: a line of JSON for each step of a run, written in the process that trains.

The first line of a pass says what is counted; each further one is a step:

    {"started": 1731000000.0, "run": "loader", "ranks": 8, "counted": "all ranks"}
    {"at": 12.5, "wait": 0.01, "train": 0.48, "step": 24, "epoch": 0, "samples": 310, ...}

`at` is when the step was handed out, in seconds since the first line; `wait`, how long it was
waited for; `train`, the time until the next one was asked for. The line is written then, so that of
a step after which none is asked for is missing. Later passes, and a run that is resumed, go on in
the same file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from evenstep.files import cannot


class RunLog:
    """See the module docstring."""

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        """
        Args:
            about: the pass, JSON-able.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._path = path
        self._begin = self._asked_at = time.monotonic()
        self._open: dict[str, Any] | None = None
        self._write({"started": time.time(), **about})

    def asked(self) -> None:
        """The trainer asks for its next step: it has trained the one before."""
        self._asked_at = now = time.monotonic()
        if self._open is not None:
            line, self._open = self._open, None
            line["train"] = now - self._begin - line["at"]
            self._write(line)

    def handed_out(self, step: Mapping[str, Any]) -> None:
        """The trainer gets the step that it has asked for.

        Args:
            step: JSON-able.
        """
        now = time.monotonic()
        self._open = {"at": now - self._begin, "wait": now - self._asked_at, "train": 0.0, **step}

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, allow_nan=False) + "\n"
        # Opened each time, so that there is nothing to close and nothing that forks share.
        try:
            with open(self._path, "ab", buffering=0) as file:
                file.write(text.encode())
        except OSError as error:
            raise cannot("write", self._path, error) from error
