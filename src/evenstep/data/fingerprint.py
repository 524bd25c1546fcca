"""What a dataset and its order are known by, from one run of a job to the next."""

from __future__ import annotations

from typing import Any

__all__ = ["dataset_fingerprint", "dataset_size"]


def dataset_size(dataset: Any, *, iterable: bool) -> int | None:
    # The length of an iterable dataset is that of a rank's share, so it may differ.
    if iterable or not hasattr(dataset, "__len__"):
        return None
    return len(dataset)


def dataset_fingerprint(dataset: Any, *, iterable: bool) -> dict[str, Any]:
    """Type, size, and what the dataset itself says: its `fingerprint`, an attribute or a method
    that gives text. Hugging Face datasets have one."""
    said = getattr(dataset, "fingerprint", None) or getattr(dataset, "_fingerprint", None)
    said = said() if callable(said) else said
    return {
        "type": type(dataset).__qualname__,
        "size": dataset_size(dataset, iterable=iterable),
        "fingerprint": None if said is None else str(said),
    }
