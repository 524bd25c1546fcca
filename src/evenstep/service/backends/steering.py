"""`Steering`: the mixture of a running job is changed by hand, at a step that is one for all."""

from __future__ import annotations

import getpass
import os
import socket
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least
from evenstep.service.planner.changes import ADD, CANCEL, DROP, END, WEIGHTS, Change

if TYPE_CHECKING:
    from typing_extensions import Self


class Steering:
    """A context manager. Each method changes the job from a step on, and returns what it does,
    JSON-able: the step, and the weights `before` and `after` it. Steps that were planned before it
    stay as they are, and so do samples that a policy's windows hold.

    All take:
        at_step: None is the first step that is neither planned nor on its way to a trainer.
        dry_run: only says what would change.

    All raise `ConfigurationError`: the change cannot be made, or the step has another one.
    """

    _closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the service is closed; start the job again")

    def set_weights(
        self,
        weights: Mapping[str, float] | None,
        *,
        at_step: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Draws by these weights, whatever the job's schedule or strategy says.

        Args:
            weights: by source; one that is not named has 0. None are the job's own again; a
                `FeedbackSchedule` goes on from the last ones.
        """
        value = None if weights is None else dict(weights)
        return self._asked(WEIGHTS, value, at_step, dry_run)

    def drop_source(
        self, source: str, *, at_step: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Draws nothing more of a source. Its place is kept, so it can be added again."""
        return self._asked(DROP, source, at_step, dry_run)

    def add_source(
        self, source: str, *, at_step: int | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Draws again of a source that was dropped, from where it was left. A source that the job
        does not have needs a start of the job: drain it, and start it with the state."""
        return self._asked(ADD, source, at_step, dry_run)

    def drain(self, *, at_step: int | None = None, dry_run: bool = False) -> dict[str, Any]:
        """Ends the job for all ranks at one step, as its mixture would. The state before that step
        resumes it."""
        return self._asked(END, None, at_step, dry_run)

    def cancel(self, at_step: int) -> dict[str, Any]:
        """Takes back what was to change at a step that is not planned yet."""
        return self._asked(CANCEL, None, at_step)

    def _asked(
        self, kind: str, value: Any, at_step: int | None, dry_run: bool = False
    ) -> dict[str, Any]:
        check_at_least(0, at_step=at_step)
        step = -1 if at_step is None else at_step
        asked = Change(kind=kind, value=value, step=step, by=who(), time=time.time())
        return self._change(asked, dry_run)

    @abstractmethod
    def _change(self, asked: Change, dry_run: bool) -> dict[str, Any]: ...


def who() -> str:
    """The user of this process and its host, such as "ana@login-1"."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for it, as in containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def first_free(
    begun: Sequence[tuple[int, int]], *, first: int, reached: int, prefetch: int
) -> tuple[int, int]:
    """
    Args:
        begun: of each constructor the next step of its furthest client and the last step that it
            has begun, -1 if that is not known.
        first: the first step of their mesh.
        reached: the next step of the furthest client, as far as clients have said elsewhere.
        prefetch: steps that clients request ahead.

    Returns:
        The next step of the furthest client, and the first step that no client has requested.
    """
    reached = max(first, reached, *(taken for taken, _ in begun))
    free = max(reached, *(last + 1 for _, last in begun))
    if reached > first and any(last < 0 for _, last in begun):
        # Of a restarted constructor it is only known how far clients may have requested.
        free = max(free, reached + prefetch + 1)
    return reached, free
