"""`follow_progress`: learning rates by the share of training that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from evenstep.errors import ConfigurationError


def follow_progress(
    scheduler: Any, progress: Callable[[], float], *, steps: int, warmup_steps: int = 0
) -> Any:
    """Has a scheduler follow the share of training that is done, in place of the number of updates,
    which is unknown before the end. Call its ``step`` after each update, as always: the rate of an
    update is that of the progress before it, so the first has the schedule's first, and after the
    last it is at its end.

    Args:
        scheduler: torch's ``LambdaLR``, as are all of transformers' ``get_scheduler``.
        progress: from 0 to 1, the same on all ranks and after a resume, such as
            ``lambda: loader.samples / (epochs * loader.epoch_samples)``.
        steps: updates that the scheduler was made for: an estimate, or any number.
        warmup_steps: that it begins with, which are still counted as updates.

    Returns:
        The same scheduler.

    Raises:
        ConfigurationError: it is of another kind.
    """
    if not isinstance(scheduler, LambdaLR):
        raise ConfigurationError(
            f"{type(scheduler).__name__} computes a rate from the one before it, so it cannot "
            "follow progress; use torch's LambdaLR, or get_scheduler of transformers"
        )

    def at_progress(rate: Callable[[Any], float]) -> Callable[[int], float]:
        def rate_of(updates: int) -> float:
            if updates < warmup_steps:
                return rate(updates)
            return rate(max(warmup_steps, min(progress(), 1.0) * steps))

        return rate_of

    scheduler.lr_lambdas = [at_progress(rate) for rate in scheduler.lr_lambdas]
    return scheduler
