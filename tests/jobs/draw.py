"""Draws jobs: each part from those that suit the parts before it; and lists of jobs in which all
pairs of parts occur.

Left out is what no user could train rightly with any loader: padding on the left for absolute
positions, packed rows for encoder-decoders and for one label per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import combinations
from typing import Any

import numpy as np

from jobs.job import PACKED, POLICIES, UPDATES, Job
from jobs.kinds import KINDS

MAPPINGS = ("dict", "encoding")
ALONE = ("tuple", "bare", "row")
"""Forms without a place for a mask."""
TRANSFORMERS = {
    "token": ("hf tokens", "hf seq2seq"),
    "own": ("hf seq2seq", "hf seq2seq model"),
    "sample": ("hf padding",),
}
"""Their collate functions, by what has a label."""


def draw(seed: int, *, seeds: int = 1, **given: Any) -> Job:
    """
    Args:
        seeds: as many different data sets may be drawn of each kind.
        given: parts that the job has.
    """
    random, job = np.random.default_rng(seed), dict(given)

    def pick(name: str, values: Sequence[Any]) -> None:
        if name not in given:
            job[name] = values[int(random.integers(len(values)))]

    pick("kind", tuple(KINDS))
    kind = KINDS[job["kind"]]
    pick("labels", kind.labels)
    pick(
        "entry",
        ("loader", "loader", "wrap", "wrap", "trainer") if _trains(job) else ("loader", "wrap"),
    )
    pick("form", _forms(job))
    pick("policy", _policies(job))
    job["packed"] = job["policy"] in PACKED
    pick("mask", _masks(job))
    pick("collate", _collates(job))
    by_itself = job["entry"] != "trainer"
    converts = job["packed"] and by_itself and job["labels"] != "shifted"
    pick(
        "call",
        ("batch", "converted") if converts and job["collate"] in ("none", "pack") else ("batch",),
    )
    pick("label", ("labels", "label", "label_ids") if _renames(job) else ("labels",))
    pick("data", ("list", "map", *["iterable"] * (by_itself and job["form"] != "row")))
    unsized = job["policy"] in ("fixed batch", "pool sort")
    pick("update", ("one step", "three steps") if unsized else tuple(UPDATES))
    pick("resumed", (False, False, True) if by_itself else (False,))
    pick("workers", (*[0] * 14, 1, 2) if by_itself else (0,))
    pick("shuffle", (False, True) if job["data"] != "iterable" else (False,))
    pick("values", ("tensors", "arrays", *["lists"] * (kind.padded or kind.labeled != "sample")))
    pick("told", (False, True))
    pick("ranks", (1, 2))
    pick("seed", tuple(range(seeds)))
    del job["packed"]
    return Job(**job)


def _trains(job: dict[str, Any]) -> bool:
    """Whether a Trainer takes the model and its labels."""
    return job["kind"] != "perceptron" and job["labels"] != "shifted"


def _forms(job: dict[str, Any]) -> tuple[str, ...]:
    kind = KINDS[job["kind"]]
    rows = job["labels"] not in ("none", "shifted")
    if job["kind"] == "perceptron":
        return ("dict", "tuple")
    if job["entry"] == "trainer" or not kind.padded:
        return ("dict", *["row"] * rows)
    if kind.media:
        return (*MAPPINGS, "row")
    if job["labels"] == "none":
        return (*MAPPINGS, "bare")
    return (*MAPPINGS, *["row"] * rows)


def _policies(job: dict[str, Any]) -> list[str]:
    kind, form = KINDS[job["kind"]], job["form"]
    if job["kind"] == "perceptron":
        return ["fixed batch"]
    packs = kind.labeled == "token" and kind.causal and form in ("dict", "encoding", "bare", "row")
    left_out = set() if packs else set(PACKED)
    if job["entry"] == "trainer":
        left_out.add("workload packing")
    return [name for name in POLICIES if name not in left_out]


def _masks(job: dict[str, Any]) -> tuple[str, ...]:
    kind = KINDS[job["kind"]]
    if job["form"] in ALONE or not kind.padded:
        return ("none",)
    if kind.media:
        return ("none", "ones")
    left = kind.relative and kind.labeled != "own"
    left &= job["entry"] != "trainer" or job["labels"] != "none"
    return ("none", "ones", "right", *["left"] * left)


def _collates(job: dict[str, Any]) -> list[str]:
    kind, form, by_trainer = KINDS[job["kind"]], job["form"], job["entry"] == "trainer"
    if form == "row":
        return ["rows", *["rows prepared"] * (job["policy"] == "fixed batch" and not by_trainer)]
    if job["kind"] == "perceptron":
        return ["none", "torch"]
    if job["packed"]:
        found = ["pack", *["pack prepared"] * bool(kind.media)]
        if job["labels"] != "shifted" and kind.reads == "causal":
            found += ["none", *["hf flattening"] * (form in MAPPINGS and not kind.media)]
    elif not kind.padded:
        found = ["pad", *["none"] * (job["policy"] != "fixed batch")]
    else:
        found = ["none", "pad", "pad 8"]
        if form == "bare" and job["policy"] == "fixed batch":
            found.remove("none")  # torch's collate function takes no unequal lengths
        left = kind.relative and kind.labeled != "own"
        found += ["pad left"] * left
        if form in MAPPINGS and not kind.media:
            # A loop that makes the labels itself may count the first token behind padding, or not.
            unclear = job["labels"] == "none" and job["mask"] == "left"
            found += (
                [] if unclear else [*["hf default"] * (job["mask"] in ("left", "right")), "own"]
            )
            if job["labels"] == "none":
                found += [] if unclear else ["hf causal", "hf padding", *["hf padding left"] * left]
            else:
                found += TRANSFORMERS[kind.labeled]
    if by_trainer and job["labels"] == "none":  # the collate function has to make them
        found = [name for name in found if name in ("hf causal", "hf flattening", "pack")]
    return [name for name in found if name != "none"] if by_trainer else found


def _renames(job: dict[str, Any]) -> bool:
    """Whether labels may have another name, as of one class for each sample."""
    kind = KINDS[job["kind"]]
    suits = kind.labeled == "sample" and kind.padded and job["form"] in MAPPINGS
    suits &= job["collate"] not in ("own", "hf default")  # which take one name, or numbers only
    return suits and (job["entry"] != "trainer" or job["collate"] == "hf padding")


def pairs_of(job: Job) -> set[tuple[Any, ...]]:
    """What of the job's parts occur together."""
    parts = [(f.name, getattr(job, f.name)) for f in fields(job) if f.name != "seed"]
    return set(combinations(parts, 2))


def covering(seed: int, count: int, *, choices: int = 20, **given: Any) -> Iterator[Job]:
    """Jobs of which each has as many new pairs of parts as the best of a few drawn ones."""
    seen: set[tuple[Any, ...]] = set()
    for number in range(count):
        first = (seed + number) * choices
        drawn = [draw(first + choice, **given) for choice in range(choices)]
        job = max(drawn, key=lambda each: len(pairs_of(each) - seen))
        seen |= pairs_of(job)
        yield job
