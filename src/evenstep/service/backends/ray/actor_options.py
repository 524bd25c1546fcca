"""How actors are declared to Ray, and how many CPUs and threads each is given.

Ray restarts actors as often as their processes die, and repeats no calls.

`ActorPlacement` decides on which nodes they are made, and what they reserve there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evenstep.errors import ConfigurationError

_CALLS = 16
"""Calls of Ray that an actor answers beside each other: where it is, and to end."""
_CPU_SHARE = 0.9  # of the cluster's free CPUs, at most, for all actors together


def actor_class(ray: Any, kind: type, cpus: float, calls: int = _CALLS) -> Any:
    """Of Ray."""
    options = {"max_restarts": -1, "max_task_retries": 0, "num_cpus": cpus}
    return ray.remote(**options, max_concurrency=calls)(kind)


def cpus_per_actor(ray: Any, cpus: float | None, count: int) -> float:
    """CPUs that each of `count` actors reserves. Those that are asked for may be more than are
    free: only actors that wait make a cluster grow, and one that is late says what is free.

    Raises:
        ConfigurationError: less than 0.
    """
    free = float(ray.available_resources().get("CPU", 0.0))
    if cpus is None:
        return min(1.0, int(1000 * _CPU_SHARE * free / count) / 1000)
    if cpus < 0:
        raise ConfigurationError(f"cpus={cpus:g} must be at least 0, such as 0.25")
    return cpus


ActorOptions: TypeAlias = Mapping[str, Any]
"""Of Ray's actors, such as ``label_selector`` or ``num_cpus``."""


class ActorPlacement:
    """What Ray is asked for each actor of a job."""

    def __init__(
        self,
        given: Mapping[str, ActorOptions | Sequence[ActorOptions]],
        *,
        loaders: int,
        constructors: int,
        standbys: int = 0,
    ) -> None:
        """
        Args:
            given: see `evenstep.service.start`.
            loaders, constructors, standbys: how many there are.

        Raises:
            ConfigurationError: an unknown role or option, or a list of another length.
        """
        counts = {"loaders": loaders, "constructors": constructors, "planner": 1}
        counts["standbys"] = standbys
        self._options: dict[str, list[ActorOptions]] = {}
        for role, asked in given.items():
            if role not in counts:
                raise ConfigurationError(
                    f"placement has {role!r}; give options of {', '.join(counts)}"
                )
            each = [asked] * counts[role] if isinstance(asked, Mapping) else list(asked)
            if len(each) != counts[role]:
                raise ConfigurationError(
                    f"placement[{role!r}] has {len(each)} entries for {counts[role]} actors; give "
                    "one for each, or one mapping for all"
                )
            self._options[role] = each

    def of(self, actor: str) -> dict[str, Any]:
        """For ``options`` of an actor's class.

        Args:
            actor: "planner", or such as "loader-3" or, of the second mesh, "constructor-0-1". Of
                those that come after the start, each is placed as one of the first.
        """
        kind, number = (*actor.split("-"), "0")[:2]
        given = self._options.get(kind if kind == "planner" else f"{kind}s")
        return {} if not given else dict(given[int(number) % len(given)])
