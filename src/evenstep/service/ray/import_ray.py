"""Imports Ray, or says how to install it."""

from __future__ import annotations

from typing import Any

__all__ = ["import_ray"]


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "the service on Ray needs ray: pip install 'evenstep[service]'; or choose "
            "backend='local', which runs all roles in this process"
        ) from error
    return ray
