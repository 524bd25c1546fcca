"""`RegistryKeeper`: tells the registry how the job stands, and each process that follows it.

Roles that are made again ask the registry how the job stands by now. The registry itself can ask
nobody but the process that has started the service, which lives as long as all actors do.
"""

from __future__ import annotations

import threading
from typing import Any

from evenstep.service.ray.road import import_ray
from evenstep.service.remote.standing import Standing

_INTERVAL = 0.2  # seconds


class RegistryKeeper:
    """Begins with `begin`."""

    def __init__(self, registry: Any, standing: Standing) -> None:
        """
        Args:
            registry: Ray's handle.
        """
        self._registry, self._standing = registry, standing
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="evenstep-registry", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def tell(self, standing: Standing) -> None:
        """Returns when the registry knows it."""
        ray, self._standing = import_ray(), standing
        while not self._closed.is_set():
            try:
                ray.get(self._registry.stand.remote(standing))
                return
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # it is being made again
                self._closed.wait(_INTERVAL)

    def close(self) -> None:
        """Before the registry ends. Idempotent."""
        self._closed.set()

    def _keep(self) -> None:
        ray = import_ray()
        while not self._closed.is_set():
            try:
                # One message: the second of two may come to the successor of who was told.
                ray.get(self._registry.keep.remote(self._standing))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:
                self._closed.wait(_INTERVAL)
