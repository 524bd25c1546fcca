"""What all saved states have in common: a head, one version, and one reader that refuses others.

    {"version": 5, "of": "DataLoader", ...}    a loader's, in a checkpoint or merged
    {"version": 5, "of": "service", ...}       a planner's, which `state_dict` of service and
                                               clients return
    {"version": 5, "of": "mixture", ...}       a part of the second

States are dictionaries of JSON's types in the user's checkpoint. They have no digest: a number that
was replaced by another possible one is not noticed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evenstep.errors import MismatchError, parsing
from evenstep.plan.value_checks import check_schema

VERSION = 5
REMEDY = "load it as state_dict() returned it"


def headed(of: str, **parts: Any) -> dict[str, Any]:
    """A state with these parts.

    Args:
        of: whose it is, as in the module docstring.
    """
    return {"version": VERSION, "of": of, **parts}


@contextmanager
def reading(state: Any, of: str, schema: Mapping[str, Any]) -> Iterator[None]:
    """Checks a state before the block that reads it.

    Args:
        of: whose it must be.
        schema: of its parts; see `check_schema`.

    Raises:
        MismatchError: it is the state of something else or of another release, or damaged, or the
            block found that it is.
    """
    found = {key: state.get(key) if isinstance(state, Mapping) else None for key in headed(of)}
    if found != headed(of):
        given = ", ".join(f"{key}={value!r}" for key, value in found.items())
        raise MismatchError(
            f"a state of version={VERSION}, of={of!r} was expected, and this one has {given}; load "
            f"what state_dict() of the {of} returned, with the evenstep that wrote it"
        )
    with parsing(f"the state of the {of}", remedy=REMEDY, error=MismatchError):
        check_schema(state, schema)
        yield
