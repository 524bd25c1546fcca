"""`ActorPlacement`: on which nodes actors are made, and what they reserve there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evenstep.errors import ConfigurationError

ActorOptions: TypeAlias = Mapping[str, Any]
"""Of Ray's actors: those of `_OPTIONS`."""

_OPTIONS = ("num_cpus", "memory", "resources", "label_selector", "scheduling_strategy")


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
            for options in each:
                _check(role, options)
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


def _check(role: str, options: Any) -> None:
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            f"placement[{role!r}] has {options!r}; give a mapping of {', '.join(_OPTIONS)}"
        )
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"placement[{role!r}] has the option {name!r}; give any of {', '.join(_OPTIONS)}"
            )
