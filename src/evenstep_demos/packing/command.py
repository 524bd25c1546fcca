"""``evenstep demo-packing``: real documents packed for pretraining, in three ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("demo-packing")(command)


def command(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder of files, or a Parquet file with one document a row.",
            show_default="the Python source files of the standard library",
        ),
    ] = None,
    glob: Annotated[
        str, typer.Option(help="Names of the files to read, in all folders below --data.")
    ] = "*.py",
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of a Parquet file: text, lists of token ids, or lengths.",
            show_default="text, input_ids or the only one",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A tokenizer.json, a folder, or a name on the hub.",
            show_default="each byte is a token",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Context window in tokens: what a micro-batch holds on average. Longer documents "
            "are split.",
            show_default="the largest power of two that leaves 100 steps",
        ),
    ] = None,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a step.")] = 4,
    out: Annotated[Path, typer.Option(help="Folder for micro_batches.png and result.json.")] = Path(
        "out/demo-packing"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Pack real documents, and show how even micro-batches are.

    Packs the same documents three times: laid end to end and cut at the context window, as is
    usual; by cost, with outliers delayed (WLB); and by cost with steady tokens per step. Prints the
    figures and draws the cost of every micro-batch. Trains nothing. `evenstep simulate
    workload-packing` has more options.

    \b
    Examples:
      evenstep demo-packing
      evenstep demo-packing --data ~/src/linux --glob "*.[ch]" --context 32768
      evenstep demo-packing --data FILE.parquet --column text --tokenizer tokenizer.json --json
    """
    from evenstep.cli.output import note, progress_bar
    from evenstep.errors import ConfigurationError
    from evenstep_demos.packing.documents import read_documents
    from evenstep_demos.packing.run import pack_documents

    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"out={out} is a file; name a folder")
    with progress_bar("reading documents") as progress:
        documents = read_documents(
            data, glob=glob, column=column, tokenizer=tokenizer, progress=progress
        )
    note(str(documents))
    pack_documents(documents, context=context, micro_batches=micro_batches, out=out, as_json=json)
