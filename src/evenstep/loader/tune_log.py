"""Logs each step that the trainer receives, for `evenstep tune`.

`evenstep tune` runs the user's own script and times its steps without changing it. If the
environment variable `FOLDER` names a folder, each loader's rank 0 appends one line of JSON for each
step to a file of its own there. Without the variable nothing is opened, and a step costs one
comparison.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from pathlib import Path

import torch

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.files import cannot

FOLDER = "EVENSTEP_TUNE"

_numbers = itertools.count()


class TuneLog:
    """The log of one loader: a line with its policy, then a line for each step."""

    def __init__(self, folder: Path, policy: str) -> None:
        """
        Args:
            folder: exists.
            policy: the policy's fingerprint.
        """
        self._folder = folder
        self._policy = policy
        self._number = next(_numbers)
        self._path: Path | None = None

    @classmethod
    def wanted(cls, policy: str) -> TuneLog | None:
        """The log that the environment asks for; None if it asks for none.

        Raises:
            ConfigurationError: the folder is not there.
        """
        folder = os.environ.get(FOLDER)
        if not folder:
            return None
        if not os.path.isdir(folder):
            raise ConfigurationError(
                f"{FOLDER}={folder} is not a folder on {socket.gethostname()}; unset the variable, "
                "or, where `evenstep tune` starts processes on other machines, set TMPDIR to a "
                "folder that all share"
            )
        return cls(Path(folder), policy)

    def write(self, step: StepInfo) -> None:
        """Logs that `step` is received now. Steps of other ranks are not logged, nor those of an
        evaluation, which has gradients switched off."""
        if step.rank != 0 or not torch.is_grad_enabled():
            return
        moments = step.totals.moments.together()
        line: dict[str, object] = {
            "time": time.monotonic(),
            "epoch": step.epoch,
            "samples": step.global_samples,
            "tokens": step.global_tokens,
            "padded_tokens": step.global_padded_tokens,
            "ends_update": step.ends_update,
            "length_moments": [float(m) for m in (moments.mean, moments.second, moments.third)],
        }
        text = json.dumps(line) + "\n"
        if self._path is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{self._number}.steps"
            self._path = self._folder / name
            head = {"policy": self._policy, "world_size": step.world_size}
            text = json.dumps(head) + "\n" + text
        # Opened each time, so that there is nothing to close and nothing that forks share.
        try:
            with open(self._path, "ab", buffering=0) as file:
                file.write(text.encode())
        except OSError as error:
            raise cannot("write", self._path, error) from error
