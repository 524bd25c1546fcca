"""Old names of arguments, which work until 0.2: one table, and one warning."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def _in(argument: str, *names: str) -> dict[str, str]:
    return {name: f"{argument}.{name}" for name in names}


_PLACES = {
    "DataLoader": {
        **_in("memory", "buffer_size", "buffer_bytes", "prefetch", "chunk_size"),
        **_in("faults", "skip_bad_samples", "warn_after", "replay", "exhausted"),
        "supervised_fn": "length_fn.supervised",
        "patches_fn": "length_fn.patches",
        "collate_threads": "",
    },
    "Job": {
        **_in("draws", "samples_per_step", "tokens_per_step", "unit", "stop"),
        **_in("draws", "schedule", "curriculum"),
        **_in("measures", "modalities", "counted", "supervised", "loss_reduction"),
        **_in("memory", "prefetch", "buffer_size", "buffer_bytes", "decoded_bytes"),
        **_in("memory", "workers", "plans_kept"),
        "warn_after": "",
        "world_size": "",
    },
    "start": {
        **_in("faults", "standbys", "patience", "hung_after", "memory_limit"),
        **_in("ray", "address", "cpus", "placement"),
        "transport": "",
        "ray_options": "ray.init",
        "events": "logs.events",
        "plan_log": "logs.plans",
        "step_log": "logs.steps",
        "scaling": "loaders",
        "stripe": "",
    },
    "RayOptions": {"transport": ""},
}
"""By function and old name: the argument that replaces it; an argument and the field of it; or
nothing, if the old one has no effect any more."""


def takes_old_arguments(function: str, **groups: type) -> Callable[[F], F]:
    """Decorates a function, or the ``__init__`` of a class, so that it takes old names, too.

    Args:
        function: its name in the table and in warnings.
        groups: by argument, the class of options that has the fields.
    """
    places = _PLACES[function]

    def decorated(own: F) -> F:
        @wraps(own)
        def call(*args: Any, **given: Any) -> Any:
            fields: dict[str, dict[str, Any]] = defaultdict(dict)
            for name in [name for name in given if name in places]:
                value = given.pop(name)
                argument, _, field = places[name].partition(".")
                new = f"pass {argument}=" if argument else "leave it out, it has no effect"
                if field:
                    fields[argument][field] = value
                    new += f"{groups[argument].__name__}({field}=...)"
                elif argument:
                    given[argument] = value
                text = f"evenstep 0.2 will not take {name}= of {function}: {new}"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
            for argument, values in fields.items():
                kind: Any = groups[argument]
                group = given.get(argument)
                if isinstance(group, kind):
                    given[argument] = replace(group, **values)
                else:  # a function instead of a group counts tokens
                    given[argument] = kind(**values, **({"tokens": group} if group else {}))
            return own(*args, **given)

        return cast(F, call)

    return decorated
