"""Options that several commands have, with one spelling and one help text."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.tools.simulate import DISTRIBUTIONS

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LengthsName = Annotated[
    str,
    typer.Option(help=f"FILE.npy, FILE.parquet:COLUMN or one of {', '.join(DISTRIBUTIONS)}."),
]
CostName = Annotated[
    str,
    typer.Option(
        help="Cost model behind imbalance and efficiency: padded-tokens, tokens, "
        "calibration:FILE.json or transformer:layers=32,hidden_size=4096,heads=32,ffn_size=14336."
    ),
]
"""Argument of `evenstep.cli.cost_option.parse_cost`."""
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
    return int(text) if text.isdecimal() else text
