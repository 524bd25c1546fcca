"""Holds a policy to its word: what every plan is checked for before anything is done with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError
from evenstep.plan.policy import Plan, Policy

__all__ = ["check_plan"]

Int64Array = npt.NDArray[np.int64]


def check_plan(policy: Policy, plan: Plan, lengths: Int64Array, patches: Int64Array) -> Int64Array:
    """
    Args:
        lengths, patches: [samples] of the window.

    Returns:
        The window positions that leave the window, each once.

    Raises:
        InvariantError: the plan names a position twice, or one that is not in the window, has an
            empty group, plans nothing, or breaks the policy's memory limit.
    """
    groups = plan.groups
    begin, end = groups.offsets[[0, -1]].tolist()
    if begin != 0 or end != len(groups.members) or groups.sizes.min(initial=1) < 1:
        raise InvariantError(
            f"{policy.name} planned a group without samples, or samples without a group"
        )
    planned = np.concatenate([groups.members, plan.dropped])
    if not len(planned):
        raise InvariantError(f"{policy.name} planned nothing in a round")
    uses = np.bincount(planned[planned >= 0], minlength=len(lengths))
    if planned.min() < 0 or len(uses) > len(lengths) or uses.max() > 1:
        raise InvariantError(f"{policy.name} planned a sample twice or out of nowhere")
    if policy.limit is not None and len(groups):
        shapes = groups.shapes(lengths)
        of_groups = np.add.reduceat(patches[groups.members], groups.offsets[:-1])
        # A single sample cannot be made smaller: whether it is accepted is decided as it arrives.
        over = (shapes.samples > 1) & ~policy.limit.fits(shapes, of_groups)
        if over.any():
            worst = int(np.argmax(over))
            raise InvariantError(
                f"{policy.name} planned {shapes.samples[worst]} samples of up to "
                f"{shapes.longest[worst]} tokens together, over {policy.limit}"
            )
    return planned
