"""Options that several commands share, with one spelling and one help text; cost models by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cost import UNKNOWN_MODEL, Cost, PaddedTokenCost, TokenCost, cost_of
from evenstep.errors import ConfigurationError
from evenstep.tools.simulate import DISTRIBUTIONS

MOST_RANKS = 65_536
"""Ranks that a command runs in one process, at most."""

WorldSize = Annotated[int, typer.Option(help="Data-parallel ranks.", max=MOST_RANKS)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LengthsName = Annotated[
    str,
    typer.Option(help=f"FILE.npy, FILE.parquet:COLUMN or one of {', '.join(DISTRIBUTIONS)}."),
]
COST_HELP = (
    "Cost model behind imbalance and efficiency: usual (attention takes as long as all else at "
    "24,000 tokens), padded-tokens, tokens, model:NAME, the config.json, folder or name of a model "
    "of transformers, or calibration:FILE.json."
)
CostName = Annotated[str, typer.Option(help=COST_HELP)]
"""Argument of `parse_cost`."""
BufferSize = Annotated[
    str,
    typer.Option(
        metavar="SAMPLES|auto",
        help="Samples that a rank's window holds; auto: as many as make enough groups.",
    ),
]
"""Argument of `parse_buffer_size`; by default "auto", as in `DataLoader`."""


def parse_buffer_size(text: str) -> int | str:
    """The number of samples, or any other text as it is, to be checked where it is used."""
    return text if (number := whole_number(text)) is None else number


def whole_number(text: str) -> int | None:
    """The number that decimal digits say; None for other text, and for absurdly many digits."""
    return int(text) if text.isdecimal() and len(text) < 20 else None


def parse_cost(text: str) -> Cost:
    """A cost from ``usual``, ``padded-tokens``, ``tokens``, ``model:NAME``, the configuration of a
    model of transformers, or ``calibration:FILE``, which ``evenstep profile`` writes.

    Raises:
        ConfigurationError: the cost is unknown, or its file cannot be read.
    """
    named: dict[str, Cost] = {
        "usual": UNKNOWN_MODEL,
        "padded-tokens": PaddedTokenCost(),
        "tokens": TokenCost(),
    }
    kind, _, value = text.partition(":")
    if text in named:
        return named[text]
    if kind == "model" and value:
        from evenstep.tools.advise.model_on_gpu import load_config

        return cost_of(load_config(value))
    if kind == "calibration" and value:
        from evenstep.tools.profile import load_calibration

        return load_calibration(value)
    raise ConfigurationError(
        f"unknown cost {text!r}; known are {', '.join(named)}, model:NAME and calibration:FILE.json"
    )


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
