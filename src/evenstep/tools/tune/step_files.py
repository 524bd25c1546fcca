"""Reads what `evenstep.loader.step_log` writes, while it is being written.

The log has the moment at which each step was handed over. A step is trained from then until the
next one is asked for, so a step's time is known once the next step of the same epoch has come; the
last step handed over, and the last of an epoch, after which a script may evaluate, are left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenstep.tools.tune.measurement import StepTime

__all__ = ["StepFiles"]


@dataclass
class _File:
    """One loader's."""

    offset: int = 0
    policy: str = ""
    handed_over: int = 0
    samples: int = 0
    last: dict[str, Any] | None = None
    steps: list[StepTime] = field(default_factory=list)


class StepFiles:
    """All loaders' logs in one folder. The one with most samples is that of the training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def read(self) -> None:
        """Takes in what has been written since the last call."""
        for path in sorted(self._folder.glob("*.steps")):
            file = self._files.setdefault(path.name, _File())
            with open(path, "rb") as opened:
                opened.seek(file.offset)
                whole, newline, _ = opened.read().rpartition(b"\n")
            file.offset += len(whole) + len(newline)
            for line in whole.splitlines():
                _take(file, json.loads(line))

    @property
    def steps(self) -> list[StepTime]:
        """Those trained so far."""
        return self._main.steps

    @property
    def policy(self) -> str:
        """Its fingerprint."""
        return self._main.policy

    @property
    def handed_over(self) -> int:
        """Steps of all loaders."""
        return sum(file.handed_over for file in self._files.values())

    @property
    def _main(self) -> _File:
        # Where ranks hold replicas of one another (tensor or pipeline parallel), several files say
        # the same; one is enough.
        return max(self._files.values(), key=lambda file: file.samples, default=_File())


def _take(file: _File, line: dict[str, Any]) -> None:
    if "policy" in line:
        file.policy = line["policy"]
        return
    last, file.last = file.last, line
    file.handed_over += 1
    file.samples += line["samples"]
    if last is not None and last["epoch"] == line["epoch"]:
        seconds = line["time"] - last["time"]
        step = StepTime(seconds, last["samples"], last["tokens"], last["padded_tokens"])
        file.steps.append(step)
