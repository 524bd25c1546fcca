"""Which options of ``evenstep simulate`` concern which policy: others are refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from evenstep.errors import ConfigurationError
from evenstep.plan.policies.by_name import POLICIES, NamedPolicy

__all__ = ["given", "refuse_unused"]


def _used_by(policy: NamedPolicy) -> tuple[str, ...]:
    built_from = tuple(name for name in policy.takes if name != "lengths")
    # An epoch planned beforehand has equally many groups on all ranks: none is exhausted early.
    online = () if "lengths" in policy.takes else ("exhausted",)
    return (*built_from, "buffer_size", "cost", *online)


_USED: Mapping[str, tuple[str, ...]] = {
    **{name: _used_by(policy) for name, policy in POLICIES.items()},
    "workload-packing": (
        "max_tokens",
        "context",
        "micro_batches",
        "queues",
        "steady",
        "max_delay",
        "whole",
        "linear",
        "stages",
        "end",
    ),
    "context-parallel": ("context", "cp", "sequences", "tile", "methods", "latency"),
}
"""Parameters of the command, but for those that concern all policies."""


def given(invocation: typer.Context, option: str) -> bool:
    """Whether the user gave it, be it the default."""
    source = invocation.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(invocation: typer.Context, policy: str) -> None:
    """Raises `ConfigurationError` for an option that was given and would make no difference, and
    where there is no such policy."""
    if policy not in _USED:
        raise ConfigurationError(f"unknown policy {policy!r}; known are {', '.join(_USED)}")
    for option in dict.fromkeys(option for used in _USED.values() for option in used):
        if option not in _USED[policy] and given(invocation, option):
            users = [name for name, used in _USED.items() if option in used]
            raise ConfigurationError(
                f"{policy} has no use for --{option.replace('_', '-')}, which is for "
                f"{', '.join(users)}; leave it out"
            )
