"""Objects in the user's code, named on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError

if TYPE_CHECKING:
    from evenstep.service.job.job import Job


def load_object(name: str) -> Any:
    """Loads the object ``FILE.py:NAME`` or ``package.module:NAME``.

    Its module is imported under a name by which worker processes can import it too, and it can
    import the modules in its folder.

    Raises:
        ConfigurationError: there is no such file, module or name.
    """
    home, _, attribute = name.rpartition(":")
    if not home or not attribute:
        raise ConfigurationError(f"{name!r} must be FILE.py:NAME or package.module:NAME")
    path = None
    if home.endswith(".py"):
        path = Path(home).resolve()
        if not path.is_file():
            raise ConfigurationError(f"there is no file {home}")
        folder, home = str(path.parent), path.stem
    else:
        folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not all(part.isidentifier() for part in home.split(".")):
        raise ConfigurationError(f"{home!r} of {name!r} is not the name of a module; rename it")
    try:
        value: Any = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{home}.".startswith(f"{error.name}."):
            raise  # another module that the user's module imports
        raise ConfigurationError(f"there is no module {home!r} to import") from error
    if path is not None and Path(getattr(value, "__file__", None) or "").resolve() != path:
        raise ConfigurationError(
            f"{path} cannot be imported: {home!r} is the name of another module; rename the file"
        )
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigurationError(f"{home} has no {attribute!r}")
        value = getattr(value, part)
    return value


def load_job(name: str) -> Job:
    """Loads the job called `name`.

    Raises:
        ConfigurationError: `name` is not a job.
    """
    from evenstep.service.job.job import Job

    found = load_object(name if ":" in name else f"{name}:job")
    if not isinstance(found, Job):
        raise ConfigurationError(
            f"{name!r} is a {type(found).__name__}; name an evenstep.service.Job"
        )
    return found
