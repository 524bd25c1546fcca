"""What goes wrong in a job of `fault_times`: by a signal, or inside of rank 1's own code."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

import evenstep

PROCESSES = multiprocessing.get_context("fork")
TIMEOUT = 1.0  # seconds that the loader gives a call, in the cases in which one hangs
LEAVES = "rank leaves the epoch"
ALL_WAIT = "rank killed, all wait"  # for samples that do not come
HANGING = ("worker hangs", "worker stopped", "collate hangs", "dataset hangs")
# Forked, as a fault is shared by inheritance.
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
LARGE = 1_000_000  # elements of a sample, or of a batch, when memory is to run out


class Fault:
    """What goes wrong inside of rank 1, at a word from outside. Shared by all its processes."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._begin = PROCESSES.Value("b", 0)
        self._at = PROCESSES.Value("d", 0.0)

    def begin(self) -> None:
        self._begin.value = 1

    def at(self) -> float:
        """When it happened, on the clock that all processes share."""
        return float(self._at.value)

    def happens(self, where: str) -> bool:
        if where != self.where or not self._begin.value:
            return False
        with self._at.get_lock():
            self._at.value = self._at.value or time.monotonic()
        return True


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.ones(20 + index % 100, dtype=torch.int64)
        if self._fault is not None:
            if self._fault.happens("sample exits"):
                sys.exit(3)
            if self._fault.happens("sample raises"):
                raise ValueError("no such picture")
            if any(map(self._fault.happens, ("worker hangs", "dataset hangs", ALL_WAIT))):
                time.sleep(3600)
            if self._fault.happens("worker out of memory"):
                limit_memory()
                return {"input_ids": tokens, "labels": tokens, "pixels": torch.zeros(LARGE)}
        return {"input_ids": tokens, "labels": tokens}


class Collate:
    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault

    def __call__(self, samples: list[dict[str, torch.Tensor]]) -> Any:
        batch = evenstep.PadCollator()(samples)
        if self._fault is not None:
            if self._fault.happens("collate exits"):
                sys.exit(3)
            if self._fault.happens("collate raises"):
                raise ValueError("ragged")
            if self._fault.happens("collate hangs"):
                time.sleep(3600)
            if self._fault.happens("batcher out of memory"):
                limit_memory()
                batch["pixels"] = torch.zeros(LARGE)
        return batch


def limit_memory() -> None:
    """No more shared memory for this process: a limit on files is one on anonymous memory too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


@dataclass(frozen=True)
class Case:
    """A fault, and how to cause it."""

    name: str
    signal: signal.Signals | None = None
    target: str = ""
    """Who gets the signal: "worker", "batcher" or "rank"."""
    workers: Mapping[str, Any] = field(default_factory=lambda: WORKERS)
    """Options of the loader: {} is without workers and a batcher process."""

    @property
    def fails_itself(self) -> bool:
        """Whether rank 1 lives to see an error."""
        dies = self.target == "rank" and self.signal is not signal.SIGINT
        return not dies and self.name != LEAVES


CASES = [
    Case("worker killed", signal.SIGKILL, "worker"),
    Case("batcher killed", signal.SIGKILL, "batcher"),
    Case("rank killed", signal.SIGKILL, "rank"),
    Case("rank killed, no workers", signal.SIGKILL, "rank", workers={}),
    Case(ALL_WAIT, signal.SIGKILL, "rank"),
    Case("rank terminated", signal.SIGTERM, "rank"),
    Case("rank interrupted", signal.SIGINT, "rank"),
    Case("worker hangs"),
    Case("worker stopped", signal.SIGSTOP, "worker"),
    Case("collate hangs"),
    Case("dataset hangs", workers={}),
    Case("worker out of memory"),
    Case("batcher out of memory"),
    Case("sample raises"),
    Case("collate raises"),
    Case("sample exits"),
    Case("collate exits"),
    Case("training loop raises"),
    Case(LEAVES),
]
