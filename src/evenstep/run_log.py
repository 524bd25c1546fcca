"""`RunLog`: a line of JSON for each step of a run, written in the process that trains.

The first line of a pass says what runs; each further one is a step, of all ranks:

    {"started": 1731000000.0, "run": "loader", "ranks": 8}
    {"at": 12.5, "wait": 0.01, "train": 0.48, "step": 24, "epoch": 0, "samples": 310, ...}

`at` is when the step was delivered, in seconds since the first line of the pass; `wait` is how long
the trainer waited for it; `train` is the time until the trainer requested the next step. The line
is written at that request, so a step after which no other is requested has no line. Later passes
and resumed runs append to the same file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from evenstep.files import LineFile


class RunLog:
    """See the module docstring."""

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        """
        Args:
            about: figures of the pass for its first line, JSON-able.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._file = LineFile(path)
        self._begin = self._asked_at = time.monotonic()
        self._open: dict[str, Any] | None = None
        self._write({"started": time.time(), **about})

    def note_request(self) -> None:
        """The trainer requests its next step, and so has trained the previous one."""
        self._asked_at = now = time.monotonic()
        if self._open is not None:
            line, self._open = self._open, None
            line["train"] = now - self._begin - line["at"]
            self._write(line)

    def handed_out(self, step: Mapping[str, Any]) -> None:
        """The trainer receives the step that it requested.

        Args:
            step: JSON-able.
        """
        now = time.monotonic()
        self._open = {"at": now - self._begin, "wait": now - self._asked_at, "train": 0.0, **step}

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.add(json.dumps(line, allow_nan=False).encode())
