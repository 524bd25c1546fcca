"""Whether a trainer has what an integration needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version


@contextmanager
def importing(module: str, package: str) -> Iterator[None]:
    """
    Args:
        module: the name of an integration.
        package: its trainer's on PyPI.

    Raises:
        ImportError: what is imported within is missing: with how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"evenstep.integrations.{module} needs {package} ({error}); pip install {package}"
        ) from error


def check_hooks(package: str, owner: object, *names: str) -> None:
    """
    Args:
        owner: the class or module that has to have `names`; those of a subclass that begin with
            an underscore are its own.

    Raises:
        ImportError: it lacks one.
    """
    missing = [name for name in names if name[:1] != "_" and not hasattr(owner, name)]
    if missing:
        owned = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
        raise ImportError(
            f"{package} {version(package)} has no {owned}.{missing[0]}, which evenstep needs; "
            f"install a release with it: docs/integrations.md has those that were tried"
        )
