"""Options that several commands share, with one spelling and one help text."""

from __future__ import annotations

from typing import Annotated

import typer

from evenstep.tools.simulate import DISTRIBUTIONS

MOST_RANKS = 65_536
"""Ranks that a command runs in one process, at most."""

WorldSize = Annotated[int, typer.Option(help="Data-parallel ranks.", max=MOST_RANKS)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LengthsName = Annotated[
    str,
    typer.Option(help=f"FILE.npy, FILE.parquet:COLUMN or one of {', '.join(DISTRIBUTIONS)}."),
]
CostName = Annotated[
    str,
    typer.Option(
        help="Cost model behind imbalance and efficiency: usual (attention takes as long as all "
        "else at 24,000 tokens), padded-tokens, tokens, "
        "calibration:FILE.json, calibration:LANGUAGE.json+VISION.json or "
        "transformer:layers=32,hidden_size=4096,heads=32,ffn_size=14336 or, with a vision tower, "
        "transformer:LANGUAGE+VISION."
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
    return text if (number := whole_number(text)) is None else number


def whole_number(text: str) -> int | None:
    """The number that decimal digits say; None for other text, and for absurdly many digits."""
    return int(text) if text.isdecimal() and len(text) < 20 else None
