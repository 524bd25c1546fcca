"""Objects that are sent to other processes, such as the functions of a job: by cloudpickle.

Functions and classes without an importable name (lambdas, functions within functions, those of a
script or notebook) are sent by value, so the objects that they close over must be picklable. Both
are checked where a job is built.
"""

from __future__ import annotations

import io
from typing import Any

from evenstep.errors import ConfigurationError, described

try:
    import cloudpickle  # type: ignore[import-untyped]
except ImportError:  # then nothing is sent: all runs in one process
    cloudpickle = None
else:

    class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, io.IOBase):  # or all that the file holds would be sent
                raise TypeError(f"cannot pickle {obj!r}")
            return super().reducer_override(obj)


def check_picklable(what: str, value: Any) -> None:
    """As `pickled`, as far as that is possible here."""
    if cloudpickle is not None:
        pickled(what, value)


def pickled(what: str, value: Any) -> bytes:
    """Bytes that any process reads by `pickle.loads`.

    Args:
        what: the name of the value in an error.

    Raises:
        ConfigurationError: it holds something that belongs to this process, or cloudpickle is not
            installed.
    """
    if cloudpickle is None:
        raise ConfigurationError(
            f"{what} is sent to other processes by cloudpickle: pip install 'evenstep[processes]', "
            "or choose workers=0"
        )
    sent = io.BytesIO()
    try:
        _Pickler(sent).dump(value)
        return sent.getvalue()
    except Exception as error:  # whatever pickling it raises
        raise ConfigurationError(
            f"{what} cannot be sent to other processes ({described(error)}); keep "
            "open files, locks, connections and generators out of it, and open them where they are "
            "used"
        ) from error
