"""``evenstep tune``: finds the max_tokens to train with, by short runs of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenstep.cli.options import Json, whole_number
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.cli.shutdown import ended_in_order
from evenstep.errors import ConfigurationError


def command(
    training: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="Command of the training; {max_tokens} in it is replaced by the value.",
        ),
    ],
    grid: Annotated[
        str | None, typer.Option(help="Values of max_tokens, separated by commas.")
    ] = None,
    from_mean: Annotated[
        float | None,
        typer.Option(help="Mean length of a sample: the grid starts at twice this. With --up-to."),
    ] = None,
    up_to: Annotated[int | None, typer.Option(help="Last value of the grid.")] = None,
    seconds: Annotated[
        float, typer.Option(help="Time to measure each value, after the warm-up.")
    ] = 60.0,
    steps: Annotated[
        int | None, typer.Option(help="Steps to measure for each value, instead of --seconds.")
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(help="Steps of each run before the measured ones: windows grow meanwhile."),
    ] = 20,
    band: Annotated[
        float, typer.Option(help="Fraction below the fastest within which a value is near-fastest.")
    ] = 0.02,
    startup: Annotated[
        float, typer.Option(help="Seconds without a first step after which a run counts as hung.")
    ] = 1800.0,
    patience: Annotated[
        float, typer.Option(help="Seconds without a further step after which a run counts as hung.")
    ] = 300.0,
    grace: Annotated[
        float, typer.Option(help="Seconds between asking a run to end and killing it.")
    ] = 10.0,
    logs: Annotated[Path | None, typer.Option(help="Folder for the output of each run.")] = None,
    json: Json = False,
) -> None:
    """Find the best max_tokens by short runs of a training.

    COMMAND is the command of your training, with {max_tokens} in the place of the value; the
    environment variable EVENSTEP_MAX_TOKENS has the value too. The training must iterate an
    evenstep.DataLoader, which records when each step begins. Each value trains for --warmup steps
    and then for --seconds; if a run fails or runs out of memory, the search continues. All
    processes of a run end with it, and when this command is interrupted or killed.

    The choice is the smallest value within --band of the highest samples per second. Composition
    (1 is that of random batches) is printed too, and a note says if speed was bought with it.

    With update_tokens= in the loader, updates hold as many tokens for all values, and only the
    speed differs. Without it, larger batches make fewer updates, and the model may learn less.

    A short run does not show whether the value survives a whole epoch, whose largest batches it may
    not reach. The value to use in that case is printed too. Losses are not compared.

    \b
    Examples:
      evenstep tune --grid 4096,8192,16384 -- torchrun --nproc-per-node 8 train.py \\
          --max-tokens {max_tokens}
      evenstep tune --from-mean 900 --up-to 32768 --json -- python train.py
    """
    from evenstep.tools.tune.candidate import Candidate, NothingSurvivedError
    from evenstep.tools.tune.command import MAX_TOKENS, PLACEHOLDER, tune_command
    from evenstep.tools.tune.grid import check_grid
    from evenstep.tools.tune.measurement import MeasuredSteps
    from evenstep.tools.tune.result import candidates_table

    values = check_grid(_grid(grid, from_mean, up_to))
    measured_steps = MeasuredSteps(seconds=seconds, steps=steps, warmup=warmup)
    if not any(PLACEHOLDER in word for word in training):
        note(f"no {PLACEHOLDER} in the command: it must read the environment variable {MAX_TOKENS}")

    def report(candidate: Candidate) -> None:
        text = f"{candidate.max_tokens:,}: {candidate.outcome}"
        if candidate.measurement is not None:
            measured = candidate.measurement
            text += f", {measured.throughput:,.4g} samples/s"
            text += f", composition {measured.composition:.2f}"
        note(text + (f" ({candidate.detail})" if candidate.detail else ""))

    note(f"values: {', '.join(f'{value:,}' for value in values)}")
    try:
        with ended_in_order(), progress_bar("measuring") as bar:
            result = tune_command(
                training,
                values,
                measured_steps=measured_steps,
                band=band,
                startup=startup,
                patience=patience,
                grace=grace,
                logs=logs,
                progress=None if bar is None else lambda value, done, total: bar(done, total),
                on_candidate=report,
            )
    except NothingSurvivedError as error:
        for candidate in error.candidates:
            if candidate.output:
                note(f"\n--- {candidate.max_tokens:,}, the end of its output:\n{candidate.output}")
        note("\n" + candidates_table(error.candidates))
        raise
    if json:
        print_json({**result.as_dict(), "command": training})
    else:
        print(result.table())
    note(
        f"not shown by this: whether {result.max_tokens:,} survives a whole epoch, and how well "
        "the model learns with it"
    )


def _grid(grid: str | None, from_mean: float | None, up_to: int | None) -> list[int]:
    from evenstep.tools.tune.grid import grid_upward

    if grid is not None:
        if from_mean is not None or up_to is not None:
            raise ConfigurationError("--grid gives all values; leave out --from-mean and --up-to")
        words = [word.strip() for word in grid.split(",") if word.strip()]
        values: list[int] = []
        for word in words:
            if (value := whole_number(word)) is None:
                raise ConfigurationError(
                    f"--grid has {word[:99]!r}; it must be positive integers separated by commas"
                )
            values.append(value)
        return values
    if from_mean is None or up_to is None:
        raise ConfigurationError("give the values: --grid 4096,8192, or --from-mean and --up-to")
    return grid_upward(from_mean, up_to)
