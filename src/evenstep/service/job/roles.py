"""How many loaders and constructors a job has, their names, and whom they serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.sizing.loader_planning import LoaderScaling
from evenstep.strategy.loaders import LoaderLayout
from evenstep.strategy.mesh import AXES

Loaders = int | Literal["auto"] | LoaderLayout | SourceLayout | LoaderScaling
"""How many loaders, or which has what; see `start`."""

LOADER_THREADS = 4  # in which a loader handles messages
_MAX_THREADS = 32  # of a constructor; further requests wait their turn
_NAMED = 8  # ranks at one step, in messages


def layout_of(job: Job, loaders: Loaders) -> SourceLayout:
    """The layout that `start` was given.

    Raises:
        ConfigurationError: less than one loader, or a layout of other sources.
    """
    if loaders == "auto":
        from evenstep.service.sizing.loader_planning import plan_loaders

        loaders = plan_loaders(job)
    if isinstance(loaders, LoaderScaling):
        loaders = loaders.layout
    if isinstance(loaders, LoaderLayout):
        loaders = SourceLayout.planned(loaders)
    if isinstance(loaders, str):
        raise ConfigurationError(f"loaders={loaders!r} must be a number, a layout or 'auto'")
    if not isinstance(loaders, SourceLayout):
        weights = [source.weight for source in job.sources]
        return SourceLayout.of(job.names, loaders, weights=weights)
    if loaders.sources != job.names:
        raise ConfigurationError(
            "the layout is of other sources than the job, or has them in another order; make one "
            "for this job by `evenstep service advise`"
        )
    return loaders


def groups_of(job: Job, constructors: int | None) -> list[list[int]]:
    """[constructors] the data-parallel groups of each, neighbours together.

    Raises:
        ConfigurationError: less than one constructor, or more than groups.
    """
    groups = job.tree.sizes["DP"]
    count = groups if constructors is None else constructors
    check_at_least(1, constructors=count)
    if count > groups:
        raise ConfigurationError(
            f"constructors={count} is more than the {groups} data-parallel groups to serve; choose "
            f"at most {groups}"
        )
    bounds = [groups * number // count for number in range(count + 1)]
    return [list(range(begin, end)) for begin, end in pairwise(bounds)]


def ranks_of(job: Job, groups: Sequence[int]) -> tuple[int, ...]:
    """The ranks that the constructor of these groups serves."""
    return tuple(sorted(job.tree.ranks[:, list(groups)].ravel().tolist()))


def constructor_name(number: int, mesh: int) -> str:
    """The role of a constructor, which no other of the job has.

    Args:
        mesh: how many meshes the job had before its own.
    """
    return f"Data Constructor {number}" + (f" of mesh {mesh}" if mesh else "")


def constructor_threads(job: Job, groups: int) -> int:
    """Threads in which a constructor of that many data-parallel groups handles requests: one for
    each step that its clients prefetch."""
    clients = groups * len(job.tree) // job.tree.sizes["DP"]
    return min(clients * (job.memory.prefetch + 1) + 1, _MAX_THREADS)


def rank_of(job: Job, rank: int | None, place: Mapping[str, int]) -> int:
    """The given rank, or the one at the given coordinates.

    Raises:
        ConfigurationError: the mesh does not have it, or both are given.
    """
    if rank is None:
        return job.tree.rank(place)
    if place:
        raise ConfigurationError(
            f"rank={rank} and {', '.join(f'{a}={place[a]}' for a in AXES if a in place)} are "
            "given; give one of them"
        )
    job.tree.place(rank)
    return rank


def check_not_taken(at_step: int, reached: int) -> None:
    """
    Args:
        reached: the step that comes next in the client that is furthest.

    Raises:
        ConfigurationError: a client has taken the step already.
    """
    if at_step < reached:
        raise ConfigurationError(
            f"at_step={at_step}, but a client comes to step {reached} next; choose that or a later "
            "one"
        )


def common_step(first: int, steps: Mapping[int, int]) -> int:
    """The step that comes next in every client that has taken any.

    Args:
        first: the service's first step, which is returned if no client has taken a step.
        steps: the step that comes next, by rank.

    Raises:
        ConfigurationError: clients have taken different numbers of steps.
    """
    started = {rank: step for rank, step in steps.items() if step > first}
    reached = set(started.values()) or {first}
    if len(reached) > 1:
        raise ConfigurationError(
            f"clients have reached different steps: {steps_text(started)}. In a training loop call "
            "client.common_state() on every rank after the same step, which waits for all; or "
            "give step="
        )
    return reached.pop()


def steps_text(steps: Mapping[int, int]) -> str:
    """Ranks by step, as in "rank 3 at step 7, ranks 0, 1 at step 8"."""
    by_step: dict[int, list[int]] = {}
    for rank, step in sorted(steps.items()):
        by_step.setdefault(step, []).append(rank)
    return ", ".join(f"{_ranks(by_step[step])} at step {step:,}" for step in sorted(by_step))


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED:,} more" if len(ranks) > _NAMED else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {named}{more}"
