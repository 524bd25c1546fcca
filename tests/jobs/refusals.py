"""What evenstep refuses rightly: each with the remedy that its text names."""

from __future__ import annotations

import re

from jobs.job import Job

REFUSALS: list[tuple[str, object]] = []


def expected_refusal(job: Job, text: str) -> bool:
    return any(re.search(pattern, text) and suits(job) for pattern, suits in REFUSALS)
