"""Reads the files of `evenstep.loader.tune_log` while they are being written.

The log has the time at which each step was delivered. A step is trained until the next one is
requested, so its duration is known once the next step of the same epoch is delivered. The last step
is left out, and so is the last step of each epoch, after which a script may evaluate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.errors import parsing
from evenstep.plan.length_moments import LengthMoments
from evenstep.plan.schema import COUNT, check_schema
from evenstep.tools.tune.measurement import StepTime

_STEP = {
    **dict.fromkeys(("epoch", "samples", "tokens", "padded_tokens"), COUNT),
    "time": float,
    "ends_update": bool,
    "length_moments": [float],
}


@dataclass
class _File:
    """The log of one loader."""

    offset: int = 0
    policy: str = ""
    handed_over: int = 0
    samples: int = 0
    last: dict[str, Any] | None = None
    steps: list[StepTime] = field(default_factory=list)


class StepFiles:
    """The logs of all loaders in a folder. The one with most samples is that of the training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def read(self) -> None:
        """Reads what was written since the last call.

        Raises:
            ConfigurationError: a line is damaged. Lines live for one run and have no digest: a
                number in the place of another is not noticed.
        """
        for path in sorted(self._folder.glob("*.steps")):
            file = self._files.setdefault(path.name, _File())
            with open(path, "rb") as opened:
                opened.seek(file.offset)
                whole, newline, _ = opened.read().rpartition(b"\n")
            file.offset += len(whole) + len(newline)
            for line in whole.splitlines():
                with parsing(path, remedy="run evenstep tune again"):
                    _add_line(file, json.loads(line))

    @property
    def steps(self) -> list[StepTime]:
        """Steps trained so far."""
        return self._main.steps

    @property
    def policy(self) -> str:
        """Fingerprint of the training's policy."""
        return self._main.policy

    @property
    def handed_over(self) -> int:
        """Steps delivered by all loaders."""
        return sum(file.handed_over for file in self._files.values())

    @property
    def _main(self) -> _File:
        # Ranks that replicate each other (tensor or pipeline parallel) write equal logs.
        return max(self._files.values(), key=lambda file: file.samples, default=_File())


def _add_line(file: _File, line: dict[str, Any]) -> None:
    if "policy" in line:
        check_schema(line, {"policy": str})
        file.policy = line["policy"]
        return
    check_schema(line, _STEP)
    last, file.last = file.last, line
    file.handed_over += 1
    file.samples += line["samples"]
    if last is not None and last["epoch"] == line["epoch"]:
        counts = last["samples"], last["tokens"]
        moments = LengthMoments(*map(np.float64, (*counts, *last["length_moments"])))
        seconds = line["time"] - last["time"]
        file.steps.append(
            StepTime(seconds, *counts, last["padded_tokens"], moments, last["ends_update"])
        )
