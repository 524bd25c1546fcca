"""Rank processes on this machine, new ones for every measurement, and none left afterwards."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from evenstep_demos.ranks import RankFailedError, run_ranks


def run(job: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Calls ``job(*arguments)`` on all ranks, in a process group of their own.

    Args:
        job: a module-level function.

    Returns:
        What each rank returned. Stops the program, with a rank's traceback, if one fails.
    """
    try:
        return run_ranks(_on_rank, ranks, job, arguments)
    except RankFailedError as error:
        sys.exit(str(error))


def _on_rank(job: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    # Denormal numbers, of which the softmax of a trained model makes many, are slow.
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore", FutureWarning)  # of torch, for what the packages call
    return job(*arguments)
