"""Arguments of `DataLoader` that have moved: their old names work until 0.2, with a warning."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from typing import Any

from evenstep.loader.options import Faults, Memory, SampleCounts

_COUNTS = {"supervised_fn": "supervised", "patches_fn": "patches"}


def with_old_arguments(
    old: dict[str, Any], memory: Memory, faults: Faults, counts: SampleCounts
) -> tuple[Memory, Faults, SampleCounts]:
    """The new arguments, with what the `old` ones say.

    Raises:
        TypeError: no release had an argument of this name.
        ConfigurationError: a value is wrong.
    """
    moved = {field.name: f"memory=evenstep.Memory({field.name}=...)" for field in fields(Memory)}
    moved |= {field.name: f"faults=evenstep.Faults({field.name}=...)" for field in fields(Faults)}
    moved |= {old: f"length_fn=evenstep.SampleCounts({new}=...)" for old, new in _COUNTS.items()}
    moved["collate_threads"] = "nothing, since the loader chooses their number"
    for name in old:
        if name not in moved:
            raise TypeError(f"evenstep.DataLoader() got an unexpected keyword argument {name!r}")
    warnings.warn(
        "evenstep 0.2 will not take these arguments of DataLoader: "
        + "; ".join(f"in place of {name}= pass {moved[name]}" for name in old),
        DeprecationWarning,
        stacklevel=3,
    )
    return (
        replace(memory, **{f.name: old[f.name] for f in fields(Memory) if f.name in old}),
        replace(faults, **{f.name: old[f.name] for f in fields(Faults) if f.name in old}),
        replace(counts, **{_COUNTS[name]: old[name] for name in _COUNTS if name in old}),
    )
