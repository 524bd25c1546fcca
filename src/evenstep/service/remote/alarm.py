"""`Alarm`: tells a client at once that the service cannot serve it any more, or until when."""

from __future__ import annotations

import threading

from evenstep.errors import EvenstepError
from evenstep.service.remote.roads import PendingAnswer, RoleGoneError
from evenstep.service.remote.role_place import RolePlace, cause_of_death


class Alarm:
    """A question to the registry that it answers when a role has died for good, the service is
    closed, or the mesh has changed. If the registry itself dies, its successor is asked, in a
    thread: no step waits."""

    def __init__(self, registry: RolePlace, mesh: int) -> None:
        """
        Args:
            mesh: of the client; see `JobInfo`.
        """
        self._registry, self._mesh = registry, mesh
        self.ends_at: int | None = None
        """The step at which the client's mesh has ended, as far as `error` has heard."""
        self._error: Exception | None = None
        self._pending: PendingAnswer | None = None
        self._ask()

    @property
    def pending(self) -> list[PendingAnswer]:
        """The answer, to wait for it; none while the registry's successor is looked for."""
        pending = self._pending
        return [] if pending is None else [pending]

    def error(self) -> Exception | None:
        """What has happened; None if nothing has."""
        pending = self._pending
        if pending is not None and pending.first_of((), 0.0) is not None:
            self._pending = None
            try:
                answer = pending.answer()
                self._error = answer.error
                if answer.error is None:
                    self.ends_at = answer.value[0]
                    self._ask()
            except RoleGoneError:
                threading.Thread(target=self._ask_again, name="evenstep-alarm", daemon=True).start()
        return self._error

    def _ask(self) -> None:
        self._location = self._registry.location()
        self._pending = self._location.road.send([("failed", (self._mesh, self.ends_at))])

    def _ask_again(self) -> None:
        try:
            self._registry.successor(self._location)
            self._ask()
        except RoleGoneError as error:
            self._error = cause_of_death(self._registry.role, error)
        except EvenstepError as error:
            self._error = error
