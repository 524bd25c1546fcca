"""Identifies a dataset from one run of a job to the next."""

from __future__ import annotations

from typing import Any


def dataset_size(dataset: Any, *, iterable: bool) -> int | None:
    """Samples; None if unknown, or of an iterable dataset, whose length may be a rank's share."""
    if iterable or not hasattr(dataset, "__len__"):
        return None
    return len(dataset)


def dataset_fingerprint(dataset: Any, *, iterable: bool) -> dict[str, Any]:
    """Type, size, and the dataset's own `fingerprint`, an attribute or a method that gives text.
    Hugging Face datasets have one."""
    own = getattr(dataset, "fingerprint", None) or getattr(dataset, "_fingerprint", None)
    own = own() if callable(own) else own
    return {
        "type": type(dataset).__qualname__,
        "size": dataset_size(dataset, iterable=iterable),
        "fingerprint": None if own is None else str(own),
    }
