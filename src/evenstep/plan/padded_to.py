"""`PaddedTo`: the multiples that a collate function pads to, whatever else is in the group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PaddedTo:
    """A policy is shown lengths that are rounded up to `samples`, so that its limits hold for what
    lies in memory."""

    samples: int = 1
    """Of each padded row, or each document of a packed one."""
    rows: int = 1
    """Of each packed row, as a whole. A policy's limit is such a multiple."""


NO_MULTIPLE = PaddedTo()
