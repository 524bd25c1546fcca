"""What evenstep refuses, or warns of, rightly: each text names the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable

from jobs.job import Job
from jobs.kinds import KINDS

Rule = tuple[str, Callable[[Job], bool]]

REFUSALS: list[Rule] = [
    (  # labels that the collate function makes, where it is not known to prepare samples
        r"count what it keeps with length_fn=evenstep.SampleCounts\(supervised=",
        lambda job: job.collate == "rows" and job.policy == "fixed batch",
    ),
    (  # a trainer of masked language models draws masks where it collates each sample alone
        r"padded already .* turn padding off in the tokenizer",
        lambda job: (job.kind, job.entry, job.collate) == ("roberta blanks", "trainer", "pack"),
    ),
    (  # a packed row would give them the positions of text
        r"Pack with collate_fn=PreparingCollator\(.*, or use packed=False",
        lambda job: job.kind == "Qwen2-VL" and job.packed and job.form != "row",
    ),
]
"""Text of the error, and of which jobs."""

WARNINGS: list[Rule] = [
    (
        r"to_hugging_face\(batch, model=model\)",
        lambda job: (
            job.packed
            and job.call == "batch"
            and (not KINDS[job.kind].causal or job.kind == "Qwen2-VL")
        ),
    )
]


def expected_refusal(job: Job, text: str) -> bool:
    return _any(REFUSALS, job, text)


def expected_warning(job: Job, text: str) -> bool:
    """
    Args:
        text: what this process has logged. With workers, others log too.
    """
    return _any(WARNINGS if not job.workers else [("", of) for _, of in WARNINGS], job, text)


def _any(rules: list[Rule], job: Job, text: str) -> bool:
    return any(re.search(pattern, text) and of(job) for pattern, of in rules)
