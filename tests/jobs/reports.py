"""What drawn jobs were, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

import pytest

from jobs.job import Job
from jobs.oracle import Result


def covered(results: Sequence[Result]) -> str:
    """How often each part was drawn, and the outcomes of each kind of model."""
    lines = [f"{len(results)} jobs, of which {_counts(each.outcome for each in results)}"]
    for name in (f.name for f in fields(Job)):
        lines.append(f"  {name}: {_counts(getattr(each.job, name) for each in results)}")
    return "\n".join(lines)


def judge(results: Sequence[Result]) -> None:
    """Prints what was covered, and fails if any job went wrong."""
    print(covered(results))
    if text := faults(results):
        pytest.fail(text, pytrace=False)


def faults(results: Sequence[Result], most: int = 20) -> str:
    """The jobs that went wrong, each as a command that runs it alone; nothing if none did."""
    wrong = [each for each in results if each.outcome == "wrong"]
    more = f"\nand {len(wrong) - most} more" if len(wrong) > most else ""
    return "\n".join(map(str, wrong[:most])) + more


def _counts(values: object) -> str:
    return ", ".join(f"{value} {count}" for value, count in Counter(values).most_common())
