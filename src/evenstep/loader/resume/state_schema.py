"""The types, ranges and relations of a saved state's values: a damaged state is refused when it is
loaded.

A state is a dictionary in the user's checkpoint and has no digest, so a number that was replaced by
another possible one is not noticed here. It may be noticed later, where the samples that have been
trained on are compared with the dataset's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.lengths import MAX_LENGTH

# A schema is a type, a range of whole numbers, a dict of schemas by field, a list of one schema for
# all its items, or (schema, None) for a value that may be None, and (schema, "text") for one that
# may be that text.

_ANY = range(2**53)
_SOME = range(1, 2**53)

_CHECKSUM = {"places": [_ANY], "digest": range(2**32)}

JOB_SCHEMA = {
    "world_size": (_SOME, None),
    "buffer_size": (_SOME, "auto"),
    "iterable": ({"num_workers": _ANY, "chunk_size": _SOME}, None),
    "accumulate": _SOME,
}
EPOCH_SCHEMA = {
    "number": _ANY,
    "round": _ANY,
    "step": _ANY,
    "received": _ANY,
    "update": {"samples": _ANY, "supervised_tokens": _ANY, "estimated_tokens": float},
    "window_size": (_ANY, None),
    "window_limit": (_ANY, None),
    "next_entry": (_ANY, None),
    "order": _CHECKSUM,
    "stream": ({"total": _ANY, "tail": _ANY, "leftover": [_ANY]}, None),
}
_WINDOW_COLUMNS = {
    "numbers": [_ANY],
    "lengths": [range(1, MAX_LENGTH + 1)],
    "supervised": [_ANY],
    "patches": [_ANY],
    "ages": [_ANY],
}
RANK_SCHEMA = {
    **_WINDOW_COLUMNS,
    "trained": [_ANY],
    "entries": [_ANY],
    "taken": _ANY,
    "quota": (_ANY, None),
    "share": {"tail": _ANY, "leftover": [_ANY]},
    "witness": _CHECKSUM,
    "sources": (str, None),
    "skipped": list,
}


def check_schema(value: Any, schema: Any, path: str = "") -> None:
    """
    Raises:
        KeyError: a field is missing.
        TypeError: a value has another type, or is out of range.
    """
    if isinstance(schema, dict) and isinstance(value, Mapping):
        for name, inner in schema.items():
            check_schema(value[name], inner, f"{path}.{name}")
    elif isinstance(schema, list) and isinstance(value, list):
        for item in value:
            check_schema(item, schema[0], path)
    elif isinstance(schema, tuple):
        if value not in schema[1:]:
            check_schema(value, schema[0], path)
    elif isinstance(schema, range):
        if type(value) is not int or value not in schema:
            raise TypeError(f"{path.lstrip('.')} is {shorten(value)}")
    elif not isinstance(schema, type) or not isinstance(value, schema):
        raise TypeError(f"{path.lstrip('.')} is {shorten(value)}")


def check_epoch(epoch: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: values that fit `EPOCH_SCHEMA` contradict each other.
    """
    stream, next_entry = epoch["stream"], epoch["next_entry"]
    estimated = epoch["update"]["estimated_tokens"]
    _require(0 <= estimated < float("inf"), "epoch.update.estimated_tokens", estimated)
    if stream is None:
        _require(next_entry is None, "epoch.next_entry", next_entry)
        return
    total, tail, leftover = stream["total"], stream["tail"], stream["leftover"]
    _require(tail <= total, "epoch.stream.tail", tail)
    _require(_increasing(leftover, tail), "epoch.stream.leftover", leftover)
    length = len(leftover) + total - tail
    _require(next_entry is None or next_entry <= length, "epoch.next_entry", next_entry)
    places = epoch["order"]["places"]
    _require(_distinct(places, total), "epoch.order.places", places)


def check_rank(part: Mapping[str, Any], epoch: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: values that fit `RANK_SCHEMA` contradict each other, or the epoch.
    """
    numbers, entries, next_entry = part["numbers"], part["entries"], epoch["next_entry"]
    _require(_increasing(numbers, part["taken"]), "numbers", numbers)
    for name in _WINDOW_COLUMNS:
        _require(len(part[name]) == len(numbers), name, part[name])
    _require(_distinct(part["trained"], len(numbers)), "trained", part["trained"])
    leftover = part["share"]["leftover"]
    _require(_increasing(leftover, part["share"]["tail"]), "share.leftover", leftover)
    _require(_distinct(entries, next_entry or 0), "entries", entries)
    _require(next_entry is None or len(entries) >= len(numbers), "entries", entries)
    places = part["witness"]["places"]
    _require(_increasing(places, next_entry or _ANY.stop), "witness.places", places)
    for skipped in part["skipped"]:
        index, reason = skipped
        _require(isinstance(reason, str), "skipped", skipped)
        _require(index is None or isinstance(index, (int, float, str)), "skipped", skipped)
    sources, begun = part["sources"], epoch["step"] or epoch["received"]
    if sources is None:
        _require(job["iterable"] is None or not begun, "sources", sources)
        return
    states = WorkerStates.from_json(sources)
    workers = job["iterable"] and max(job["iterable"]["num_workers"], 1)
    _require(len(states.workers) == workers, "sources", sources)
    _require(states.place <= part["share"]["tail"] + part["taken"], "sources", sources)


def _require(holds: object, path: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{path} is {shorten(value)}, which contradicts the rest")


def _increasing(numbers: Sequence[int], below: int) -> bool:
    return all(a < b for a, b in pairwise([*numbers, below]))


def _distinct(numbers: Sequence[int], below: int) -> bool:
    return len(set(numbers)) == len(numbers) and max(numbers, default=-1) < below


def shorten(value: Any) -> str:
    """The repr of a value, cut to the length that an error has room for."""
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."
