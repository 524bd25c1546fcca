"""What drawn jobs were, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobs.oracle import Result


def judge(results: Sequence[Result]) -> None:
    """Fails if any job went wrong."""
    if text := faults(results):
        pytest.fail(text, pytrace=False)


def faults(results: Sequence[Result], most: int = 20) -> str:
    """The jobs that went wrong, each as a command that runs it alone; nothing if none did."""
    wrong = [each for each in results if each.outcome == "wrong"]
    more = f"\nand {len(wrong) - most} more" if len(wrong) > most else ""
    return "\n".join(map(str, wrong[:most])) + more
