"""``evenstep service``: commands that change a running job."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.output import note, print_json
from evenstep.errors import ConfigurationError, EvenstepError, parsing
from evenstep.files import cannot

if TYPE_CHECKING:
    from evenstep.service.client.joining import AttachedService

Address = Annotated[
    str,
    typer.Option(
        help="Address of the service, as `run` prints it; auto finds one on this machine."
    ),
]
Name = Annotated[str, typer.Option(help="Name of the job.")]
_AtStep = Annotated[
    int | None,
    typer.Option(
        min=0, help="Step from which on it counts.", show_default="the first that is not planned"
    ),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")]
_Source = Annotated[str, typer.Argument(metavar="SOURCE", help="Name of the source.")]


_OF_SOURCE = {
    "drop-source": """Draw nothing more of a source; its place is kept.

    \b
    Examples:
      evenstep service drop-source chat --name pretrain
    """,
    "add-source": """Draw again of a source that was dropped, from where it was left.

    For a source that the job does not have yet: `drain` it, add the source to the job, and start
    it with --resume.

    \b
    Examples:
      evenstep service add-source chat --name pretrain
    """,
}
_AT_ONCE = {
    "pause": """Let no rank begin another step, until `resume`. Trainers wait.

    \b
    Examples:
      evenstep service pause --name pretrain
    """,
    "resume": """End a pause.

    \b
    Examples:
      evenstep service resume --name pretrain
    """,
    "end": """End the job at once: its trainers get an error. `drain` ends it at a step.

    \b
    Examples:
      evenstep service end --name pretrain
    """,
}


def register(group: typer.Typer) -> None:
    """Adds the commands to `group`."""
    group.command("set-weights")(set_weights)
    for name, text in _OF_SOURCE.items():
        group.command(name, help=inspect.cleandoc(text))(_of_source(name.replace("-", "_")))
    for command in (drain, cancel, scale, remesh):
        group.command(command.__name__)(command)
    for name, text in _AT_ONCE.items():
        group.command(name, help=inspect.cleandoc(text))(_at_once(name))


def _of_source(method: str) -> Callable[..., None]:
    """The command of a method of `Steering` that takes a source."""

    def command(
        source: _Source,
        at_step: _AtStep = None,
        dry_run: _DryRun = False,
        address: Address = "auto",
        name: Name = "job",
    ) -> None:
        with _attached(address, name) as job:
            print_json(getattr(job, method)(source, at_step=at_step, dry_run=dry_run))

    return command


def _at_once(method: str) -> Callable[..., None]:
    """The command of a method of `AttachedService` without arguments."""

    def command(address: Address = "auto", name: Name = "job") -> None:
        with _attached(address, name) as job:
            getattr(job, method)()

    return command


def set_weights(
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE=WEIGHT]... | FILE.json",
            help="Of all sources to draw from; none are the job's own weights again.",
        ),
    ] = None,
    at_step: _AtStep = None,
    dry_run: _DryRun = False,
    address: Address = "auto",
    name: Name = "job",
) -> None:
    """Draw by other weights, from a step on that is the same for all ranks.

    \b
    Examples:
      evenstep service set-weights code=0.7 chat=0.3 --name pretrain
      evenstep service set-weights weights.json --at-step 12000 --dry-run
      evenstep service set-weights
    """
    given = parse_weights(weights or [])
    with _attached(address, name) as job:
        print_json(job.set_weights(given, at_step=at_step, dry_run=dry_run))


def drain(
    at_step: _AtStep = None,
    dry_run: _DryRun = False,
    address: Address = "auto",
    name: Name = "job",
) -> None:
    """End the job for all ranks at one step, from which it can be resumed.

    \b
    Examples:
      evenstep service drain --at-step 20000 --name pretrain
    """
    with _attached(address, name) as job:
        print_json(job.drain(at_step=at_step, dry_run=dry_run))


def cancel(
    at_step: Annotated[int, typer.Option(min=0, help="Step of the change.")],
    address: Address = "auto",
    name: Name = "job",
) -> None:
    """Take back what was to change at a step that is not planned yet.

    \b
    Examples:
      evenstep service cancel --at-step 20000 --name pretrain
    """
    with _attached(address, name) as job:
        print_json(job.cancel(at_step))


def scale(
    loaders: Annotated[int, typer.Argument(min=1, metavar="LOADERS", help="Source Loaders.")],
    address: Address = "auto",
    name: Name = "job",
) -> None:
    """Change the number of Source Loaders. No batch changes.

    \b
    Examples:
      evenstep service scale 8 --name pretrain
    """
    with _attached(address, name) as job:
        job.use_loaders(loaders)


def remesh(
    mesh: Annotated[
        list[str],
        typer.Argument(metavar="AXIS=SIZE...", help="The new mesh, such as DP=4 CP=2."),
    ],
    at_step: _AtStep = None,
    address: Address = "auto",
    name: Name = "job",
) -> None:
    """Change the mesh at a step. Trainers of the old one get MeshChangedError there.

    \b
    Examples:
      evenstep service remesh DP=4 CP=2 --name pretrain
    """
    sizes = _pairs(mesh, int, "AXIS=SIZE, such as DP=4")
    with _attached(address, name) as job:
        job.remesh(sizes, at_step=at_step)


@contextmanager
def _attached(address: str, name: str) -> Iterator[AttachedService]:
    from evenstep.service.client.joining import attach

    with attach(address, name) as job:
        yield job


def parse_weights(given: list[str]) -> dict[str, float] | None:
    """Weights from ``SOURCE=WEIGHT`` or from the file of a JSON object; None if nothing is given.

    Raises:
        ConfigurationError: they are neither.
    """
    if not given:
        return None
    if len(given) == 1 and given[0].endswith(".json"):
        return read_weights(Path(given[0]))
    return _pairs(given, float, "SOURCE=WEIGHT, such as code=0.7, or FILE.json")


def read_weights(file: Path) -> dict[str, float] | None:
    """
    Raises:
        ConfigurationError: the file cannot be read, or is no JSON object or null.
    """
    try:
        text = file.read_text()
    except OSError as error:
        raise cannot("read", file, error) from error
    with parsing(str(file), remedy='give an object such as {"code": 0.7, "chat": 0.3}'):
        found = json.loads(text)
        if found is not None and not isinstance(found, dict):
            raise TypeError(f"it is a {type(found).__name__}")
    return found


def _pairs(given: list[str], kind: Callable[[str], Any], form: str) -> dict[str, Any]:
    found = {}
    for pair in given:
        name, _, value = pair.partition("=")
        try:
            found[name] = kind(value)
        except ValueError:
            raise ConfigurationError(f"{pair!r} is not {form}") from None
    return found


class WatchedWeights:
    """A file of weights that somebody edits while the job runs."""

    def __init__(self, file: Path, set_weights: Callable[[Any], Any]) -> None:
        """
        Raises:
            ConfigurationError: the weights in the file cannot be set.
        """
        self._file, self._set_weights = file, set_weights
        self._set = read_weights(file)
        self._said = ""
        if self._set is not None:
            set_weights(self._set)

    def look(self) -> None:
        """Sets the weights if the file has others. What is wrong with it is only told."""
        said = ""
        try:
            found = read_weights(self._file)
            if found != self._set:
                told = self._set_weights(found)
                self._set = found
                note(f"weights of {self._file} from step {told['step']:,} on")
        except EvenstepError as error:
            said = f"weights stay as they are: {error}"
        if said and said != self._said:
            note(said)
        self._said = said
