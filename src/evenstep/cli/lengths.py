"""``evenstep lengths``: counts the lengths of a whole data set once, and keeps them in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.options import Json
from evenstep.cli.output import note, print_json, print_table, progress_bar
from evenstep.cli.user_objects import load_object
from evenstep.errors import ConfigurationError


def command(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="FILE.py:NAME or package.module:NAME of a map-style dataset, or of a function "
            "without arguments that returns one.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    num_workers: Annotated[int, typer.Option(help="Processes that prepare samples.", max=1024)] = 0,
    transform: Annotated[
        str,
        typer.Option(
            help="A name for everything else that lengths depend on: tokenizer, template, "
            "truncation. Readers of the file must give the same."
        ),
    ] = "",
    length_fn: Annotated[
        str | None,
        typer.Option(
            help="FILE.py:NAME or package.module:NAME of a function from a sample to its length.",
            show_default="the number of input_ids",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the file --out is still valid.")
    ] = False,
    json: Json = False,
) -> None:
    """Count the tokens of every sample, for offline policies.

    Offline policies plan a whole epoch in advance, from the lengths of all samples. This command
    reads the whole dataset once, transforms included. Online policies, such as even, need no such
    file.

    \b
    Examples:
      evenstep lengths train.py:make_dataset --out lengths.parquet --num-workers 8
      evenstep lengths train.py:make_dataset --out lengths.parquet --check
      evenstep simulate even --lengths lengths.parquet:length --world-size 8
    """
    from evenstep.data import count_lengths, read_lengths, write_lengths

    measured = _dataset(load_object(dataset))
    function = None if length_fn is None else load_object(length_fn)
    begin = time.perf_counter()
    if check:
        lengths = read_lengths(out, measured, transform=transform, length_fn=function)
    else:
        with progress_bar("counting") as progress:
            lengths = count_lengths(
                measured, num_workers=num_workers, length_fn=function, progress=progress
            )
        write_lengths(out, lengths, measured, transform=transform, length_fn=function)
    seconds = time.perf_counter() - begin
    values = lengths.values
    figures = {
        "samples": len(lengths),
        "tokens": int(values.sum()),
        "mean": float(values.mean()),
        "shortest": int(values.min()),
        "longest": int(values.max()),
        "seconds": seconds,
    }
    if json:
        print_json({"file": str(out), "checked": check, **figures})
        return
    print_table(str(out), {name: f"{value:,.6g}" for name, value in figures.items()})
    note("the file is still valid" if check else f"evenstep.read_lengths({str(out)!r}, dataset)")


def _dataset(named: Any) -> Any:
    if hasattr(named, "__getitem__") and hasattr(named, "__len__"):
        return named
    if callable(named):
        return named()
    raise ConfigurationError(
        f"DATASET is {named!r}: neither a map-style dataset nor a function that returns one"
    )
