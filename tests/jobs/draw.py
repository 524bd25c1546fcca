"""Draws jobs: which parts suit each other, and lists in which all pairs of parts occur.

Left out is what no user could train rightly with any loader: padding on the left for absolute
positions, packed rows for encoder-decoders and for one label per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations
from typing import Any

import numpy as np

from jobs.job import PACKED, POLICIES, UPDATES, Job
from jobs.kinds import KINDS
from jobs.training import HAS_LABELS_OPTION

FORMS = ("dict", "encoding", "dataclass", "named tuple", "tuple", "bare", "row")
OURS = ("none", "pad", "pad 8", "pad left", "pack")
TRANSFORMERS = {
    "none": ("hf causal", "hf padding", "hf padding left"),
    "token": ("hf tokens", "hf seq2seq", "hf seq2seq 8"),
    "own": ("hf seq2seq", "hf seq2seq 8", "hf seq2seq model"),
    "sample": ("hf padding",),
}
AXES: dict[str, tuple[Any, ...]] = {
    "told": (False, True) if HAS_LABELS_OPTION else (False,),
    "form": FORMS,
    "values": ("tensors", "lists", "arrays"),
    "mask": ("none", "ones", "right", "left"),
    "data": ("list", "map", "iterable"),
    "policy": tuple(POLICIES),
    "call": ("batch", "converted"),
    "entry": ("loader", "wrap", "trainer"),
    "update": tuple(UPDATES),
    "ranks": (1, 2),
    "workers": (*[0] * 14, 1, 2),
    "shuffle": (False, True),
}


def collates_of(job: dict[str, Any]) -> list[str]:
    """The collate functions that suit the other parts of a job."""
    kind = KINDS[job["kind"]]
    if job["form"] == "row":
        return ["rows"]
    if job["policy"] in PACKED:
        flattening = job["form"] in ("dict", "encoding") and kind.causal and not kind.media
        shifted = job["labels"] == "shifted" or kind.reads != "causal"
        return ["pack"] if shifted else ["none", "pack", *["hf flattening"] * flattening]
    if job["kind"] == "perceptron":
        return ["none", "torch"]
    names = ["none", "pad", "pad 8"]
    if kind.relative and kind.labeled != "own":
        names.append("pad left")
    if job["form"] == "tuple":
        return ["pad"]
    if job["form"] not in ("dict", "encoding") or kind.media:
        return names
    names.append("own")
    if job["mask"] in ("left", "right"):
        names.append("hf default")
    if job["kind"] in ("wav2vec2", "bert token numbers"):
        return names
    theirs = TRANSFORMERS["none" if job["labels"] == "none" else kind.labeled]
    return [*names, *(name for name in theirs if kind.relative or not name.endswith("left"))]


def suits(job: Job) -> bool:
    """Whether the parts go together in a job that some user could have."""
    kind, packed = KINDS[job.kind], job.policy in PACKED
    mapping = job.form in ("dict", "encoding")
    if job.kind == "perceptron":
        return (
            job.form in ("dict", "tuple")
            and job.mask == "none"
            and job.policy == "fixed batch"
            and job.entry != "trainer"
            and job.call == "batch"
            and job.values != "lists"
            and job.update in ("one step", "three steps")
        )
    rules = [
        # Forms of samples
        job.form != "bare" or job.labels == "none",
        job.form not in ("dataclass", "named tuple", "tuple") or job.labels != "none",
        job.form not in ("tuple", "bare", "row") or job.mask == "none",
        job.form == "dict" or mapping or job.kind != "wav2vec2",
        job.form in ("dict", "encoding", "row") or not kind.media,
        job.form != "row" or job.labels not in ("none", "shifted"),
        job.form != "row" or job.kind not in ("wav2vec2",),
        job.form != "row" or job.data != "iterable",
        job.mask in ("none", "ones") or not kind.media,
        job.mask != "left" or (kind.relative and kind.labeled != "own"),
        # A loop that makes the labels itself may count the first token behind padding, or not.
        job.mask != "left" or job.labels != "none" or job.collate in OURS,
        # Policies
        not packed or (kind.labeled == "token" and job.form in ("dict", "encoding", "bare", "row")),
        packed or job.call == "batch",
        job.call != "converted" or job.labels != "shifted",
        job.call != "converted" or job.collate in ("none", "pack"),
        job.policy not in ("fixed batch", "pool sort") or job.update in ("one step", "three steps"),
        # Trainers
        job.entry != "trainer"
        or (
            job.form in ("dict", "row")
            and job.data != "iterable"
            and job.policy != "workload packing"
            and job.call == "batch"
            and job.collate != "none"
            and job.labels != "shifted"
            and (job.labels != "none" or job.collate in ("hf causal", "hf flattening", "pack"))
            and job.kind != "bert token numbers"
            and not job.workers
        ),
    ]
    return all(rules)


def draw(seed: int, *, seeds: int = 1, **parts: Any) -> Job:
    """A job that suits.

    Args:
        parts: those that it must have.
    """
    random = np.random.default_rng(seed)

    def one_of(values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    for _ in range(10_000):
        made: dict[str, Any] = {"kind": one_of(tuple(KINDS)), **parts}
        made = {"labels": one_of(KINDS[made["kind"]].labels), **made}
        made = {**{name: one_of(values) for name, values in AXES.items()}, **made}
        made = {"collate": one_of(collates_of(made)), "seed": int(random.integers(seeds)), **made}
        job = Job(**made)
        if suits(job):
            return job
    raise ValueError(f"no job suits {parts}")


def pairs_of(job: Job) -> set[tuple[Any, ...]]:
    """What of the job's parts occur together."""
    parts = [(f.name, getattr(job, f.name)) for f in fields(job) if f.name != "seed"]
    return set(combinations(parts, 2))


def covering(seed: int, count: int, *, choices: int = 20, **parts: Any) -> Iterator[Job]:
    """Jobs of which each has as many new pairs of parts as the best of a few drawn ones."""
    seen: set[tuple[Any, ...]] = set()
    for number in range(count):
        first = (seed + number) * choices
        drawn = [draw(first + choice, **parts) for choice in range(choices)]
        job = max(drawn, key=lambda each: len(pairs_of(each) - seen))
        seen |= pairs_of(job)
        yield job
