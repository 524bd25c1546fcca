"""Checks of every plan before it is used, so that a wrong policy fails at once."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import GroupShapes
from evenstep.errors import InvariantError
from evenstep.plan.policy import Plan, Policy


def check_positions(policy: Policy, plan: Plan, count: int) -> Int64Array:
    """Checks that the plan names each window position at most once, in groups and steps that hold.

    Args:
        count: samples in the window.

    Returns:
        The window positions that leave the window, each once.

    Raises:
        InvariantError: the plan names a position twice, or one that is not in the window, has an
            empty group or step or one of too many micro-batches, or plans nothing.
    """
    groups = plan.groups
    begin, end = groups.offsets[[0, -1]].tolist()
    if begin != 0 or end != len(groups.members) or groups.sizes.min(initial=1) < 1:
        raise InvariantError(
            f"{policy.name} planned a group without samples, or samples without a group"
        )
    steps = plan.step_offsets
    sizes = np.diff(steps)
    if steps[0] != 0 or steps[-1] != len(groups) or sizes.min(initial=1) < 1:
        raise InvariantError(f"{policy.name} planned a step without groups, or a group of no step")
    if sizes.max(initial=1) > policy.micro_batches:
        raise InvariantError(
            f"{policy.name} planned a step of {sizes.max()} groups, with micro_batches="
            f"{policy.micro_batches}"
        )
    planned = groups.members
    if len(plan.dropped):
        planned = np.concatenate([planned, plan.dropped])
    if not len(planned):
        raise InvariantError(f"{policy.name} planned nothing in a round")
    if planned.min() < 0 or planned.max() >= count or np.bincount(planned).max() > 1:
        raise InvariantError(f"{policy.name} planned a sample twice, or one not in the window")
    return planned


def check_memory(policy: Policy, shapes: GroupShapes) -> None:
    """Checks groups against the policy's memory limit.

    Args:
        shapes: [groups].

    Raises:
        InvariantError: a group breaks the policy's memory limit.
    """
    if policy.limit is None:
        return
    # A single sample cannot be made smaller: it was accepted or refused as it arrived.
    over = (shapes.samples > 1) & ~policy.limit.fits(shapes)
    if over.any():
        worst = int(np.argmax(over))
        raise InvariantError(
            f"{policy.name} planned {shapes.samples[worst]} samples of up to "
            f"{shapes.longest[worst]} tokens together, over {policy.limit}"
        )
