"""Options that several commands share, with one spelling and one help text; cost models by name."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from evenstep.cli.output import note
from evenstep.cost import (
    UNKNOWN_MODEL,
    Cost,
    FittedCost,
    PaddedTokenCost,
    TokenCost,
    TransformerCost,
    VisionLanguageCost,
)
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
"""Argument of `evenstep.cli.shared_options.parse_cost`."""
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
    """A cost from ``usual``, ``padded-tokens``, ``tokens``, ``transformer:FIELD=VALUE,...``,
    ``transformer:LANGUAGE+VISION`` with the fields of both, ``calibration:FILE`` or
    ``calibration:LANGUAGE.json+VISION.json``.

    The fields are those of `TransformerCost`; ``evenstep profile`` writes the files.

    Raises:
        ConfigurationError: the cost is unknown, its fields are wrong, or its file cannot be read.
    """
    name, _, settings = text.partition(":")
    if text == "usual":
        return UNKNOWN_MODEL
    if text == "padded-tokens":
        return PaddedTokenCost()
    if text == "tokens":
        return TokenCost()
    if name == "transformer":
        language, _, vision = settings.partition("+")
        tower = _transformer(vision + ",causal=false,gated=false") if vision else None
        return _both(_transformer(language), tower)
    if name == "calibration":
        language, _, vision = settings.partition("+")
        return _both(_calibration(language), _calibration(vision) if vision else None)
    raise ConfigurationError(
        f"unknown cost {text!r}; known are usual, padded-tokens, tokens, "
        "transformer:FIELD=VALUE,..., transformer:LANGUAGE+VISION, calibration:FILE.json and "
        "calibration:LANGUAGE.json+VISION.json"
    )


def _both(language: Cost, vision: TransformerCost | FittedCost | None) -> Cost:
    return VisionLanguageCost(language=language, vision=vision) if vision else language


def _calibration(path: str) -> FittedCost:
    from evenstep.tools.profile import read_calibration

    calibration = read_calibration(path)
    note(f"{path}: measured on {calibration.device}, {calibration.dtype}")
    return calibration.cost


def _transformer(settings: str) -> TransformerCost:
    fields = {f.name: f for f in dataclasses.fields(TransformerCost)}
    needed = [f.name for f in fields.values() if f.default is dataclasses.MISSING]
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        name, _, value = setting.partition("=")
        if name not in fields:
            raise ConfigurationError(
                f"the transformer cost has no field {name!r}; it has {', '.join(fields)}"
            )
        switch = isinstance(fields[name].default, bool)
        if switch and value in ("true", "false"):
            values[name] = value == "true"
        elif not switch and (number := whole_number(value)) is not None:
            values[name] = number
        else:
            kind = "true or false" if switch else "a positive integer"
            raise ConfigurationError(f"{name}={value} of the transformer cost must be {kind}")
    missing = [name for name in needed if name not in values]
    if missing:
        raise ConfigurationError(
            f"the transformer cost needs {', '.join(missing)} too, as in "
            "transformer:layers=32,hidden_size=4096,heads=32,ffn_size=14336"
        )
    return TransformerCost(**values)
