"""What the values of a saved state may be: a damaged state is refused when it is loaded.

A state is a dictionary in the user's checkpoint and has no digest, so a number that was replaced by
another possible one is not noticed here. It may be noticed later, where the samples that have been
trained on are compared with the dataset's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.label_reading import READINGS
from evenstep.plan.value_checks import (
    AT_LEAST_1,
    COUNT,
    MAX_LENGTH,
    check_schema,
    distinct,
    increasing,
    require,
)

_CHECKSUM = {"places": [COUNT], "digest": range(2**32)}

JOB_SCHEMA = {
    "world_size": (AT_LEAST_1, None),
    "buffer_size": (AT_LEAST_1, "auto"),
    "iterable": ({"num_workers": COUNT, "chunk_size": AT_LEAST_1}, None),
    "accumulate": AT_LEAST_1,
}
LEARNED_SCHEMA = {
    "ranks": AT_LEAST_1,
    "accumulate": AT_LEAST_1,
    "target_tokens": (AT_LEAST_1, None),
    "repeatable": bool,
}
"""Of ``job["learned"]``, which states of loaders with `update_tokens` have."""
EPOCH_SCHEMA = {
    "number": COUNT,
    "round": COUNT,
    "step": COUNT,
    "received": COUNT,
    "update": {"samples": COUNT, "supervised_tokens": COUNT},
    "window_size": (COUNT, None),
    "window_limit": (COUNT, None),
    "labels": (range(0), None, *READINGS),
    "next_entry": (COUNT, None),
    "samples": COUNT,
    "order": _CHECKSUM,
    "stream": ({"total": COUNT, "tail": COUNT, "leftover": [COUNT]}, None),
}
FIT_SCHEMA = {"tokens": AT_LEAST_1, "longest": COUNT, "grows": bool}
UPDATES_SCHEMA = {"accumulate": AT_LEAST_1, "first": COUNT, "before": COUNT}
"""Of what fits in memory, where that is found while training, and of the updates since then."""
_WINDOW_COLUMNS = {
    "numbers": [COUNT],
    "lengths": [range(1, MAX_LENGTH + 1)],
    "supervised": [COUNT],
    "patches": [COUNT],
    "ages": [COUNT],
}
MEDIA = ("images", "patch_pairs")
"""Columns of a window that a state has only where media are counted."""
RANK_SCHEMA = {
    **_WINDOW_COLUMNS,
    "trained": [COUNT],
    "seen_lengths": [range(2**63)],
    "entries": [COUNT],
    "taken": COUNT,
    "quota": (COUNT, None),
    "share": {"tail": COUNT, "leftover": [COUNT]},
    "checksum": _CHECKSUM,
    "workers": (str, None),
    "skipped": list,
}


def check_epoch(epoch: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: values that fit `EPOCH_SCHEMA` contradict each other.
    """
    ratios = epoch.get("ratios", [[0, 0], [0, 0]])
    check_schema(ratios, [[COUNT]], "epoch.ratios")
    require([len(each) for each in ratios] == [2, 2], "epoch.ratios", ratios)
    filled = epoch.get("filled", [0, 0])
    check_schema(filled, [range(2**63)], "epoch.filled")
    require(len(filled) == 2, "epoch.filled", filled)
    if "fits" in epoch:
        check_schema(epoch["fits"], [FIT_SCHEMA], "epoch.fits")
        require(len(epoch["fits"]) == 2, "epoch.fits", epoch["fits"])
        check_schema(epoch["updates"], UPDATES_SCHEMA, "epoch.updates")
    too_long = epoch.get("too_long", [0, 0])
    check_schema(too_long, [COUNT], "epoch.too_long")
    require(len(too_long) == 2, "epoch.too_long", too_long)
    stream, next_entry = epoch["stream"], epoch["next_entry"]
    if stream is None:
        require(next_entry is None, "epoch.next_entry", next_entry)
        return
    total, tail, leftover = stream["total"], stream["tail"], stream["leftover"]
    require(tail <= total, "epoch.stream.tail", tail)
    require(increasing(leftover, tail), "epoch.stream.leftover", leftover)
    length = len(leftover) + total - tail
    require(next_entry is None or next_entry <= length, "epoch.next_entry", next_entry)
    places = epoch["order"]["places"]
    require(distinct(places, total), "epoch.order.places", places)


def check_rank(part: Mapping[str, Any], epoch: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: values that fit `RANK_SCHEMA` contradict each other, or the epoch.
    """
    numbers, entries, next_entry = part["numbers"], part["entries"], epoch["next_entry"]
    require(increasing(numbers, part["taken"]), "numbers", numbers)
    require(len(part["seen_lengths"]) == 2, "seen_lengths", part["seen_lengths"])
    optional = [name for name in (*MEDIA, "source", "too_long") if name in part]
    for name in optional:
        check_schema(part[name], [COUNT], name)
    check_schema(part.get("too_long_so_far", 0), COUNT, "too_long_so_far")
    for name in (*_WINDOW_COLUMNS, *optional):
        require(len(part[name]) == len(numbers), name, part[name])
    trained = part["trained"]
    require(distinct(trained, len(numbers)), "trained", trained)
    require(epoch["received"] > 0 or not trained, "trained", trained)
    formed = epoch["received"] or part["taken"]
    require(part["quota"] is not None or not formed, "quota", part["quota"])
    leftover = part["share"]["leftover"]
    require(increasing(leftover, part["share"]["tail"]), "share.leftover", leftover)
    require(distinct(entries, next_entry or 0), "entries", entries)
    if next_entry is not None:
        require(len(entries) >= len(numbers), "entries", entries)
        require(part["taken"] <= next_entry, "taken", part["taken"])
    places = part["checksum"]["places"]
    require(increasing(places, next_entry or COUNT.stop), "checksum.places", places)
    for skipped in part["skipped"]:
        index, reason = skipped
        require(isinstance(reason, str), "skipped", skipped)
        require(index is None or isinstance(index, (int, float, str)), "skipped", skipped)
    saved, started = part["workers"], epoch["step"] or epoch["received"]
    if saved is None:
        require(job["iterable"] is None or not started, "workers", saved)
        return
    states = WorkerStates.from_json(saved)
    workers = job["iterable"] and max(job["iterable"]["num_workers"], 1)
    require(len(states.workers) == workers, "workers", saved)
    require(states.place <= part["share"]["tail"] + part["taken"], "workers", saved)
