"""``evenstep profile``: what attention and the rest of a model cost on the hardware at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evenstep.cli.output import note, print_json, progress_bar
from evenstep.errors import ConfigurationError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("profile")(command)


def command(
    layers: Annotated[int, typer.Option(help="Layers of the model; one of them is measured.")],
    hidden_size: Annotated[int, typer.Option(help="Width of the residual stream.")],
    heads: Annotated[int, typer.Option(help="Attention heads.")],
    ffn_size: Annotated[int, typer.Option(help="Inner width of the feed-forward network.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")],
    kv_heads: Annotated[
        int | None,
        typer.Option(help="Heads of keys and values, if fewer.", show_default="--heads"),
    ] = None,
    gated: Annotated[
        bool, typer.Option(help="Three feed-forward matrices (SwiGLU), or two (GELU).")
    ] = True,
    causal: Annotated[bool, typer.Option(help="Whether tokens see only those before.")] = True,
    dtype: Annotated[
        str | None,
        typer.Option(help="bf16, fp16 or fp32.", show_default="bf16 on a GPU, fp32 on a CPU"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_length: Annotated[
        int, typer.Option(help="Longest document; up to eight shorter ones, each half the next.")
    ] = 32_768,
    seconds: Annotated[float, typer.Option(help="For all lengths together, about.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what attention and the rest of a model cost, and write a calibration file.

    One layer runs forward and backward over single documents of several lengths, its attention and
    everything else timed apart; two fits give seconds per token and per squared token. The
    coefficients are of --layers such layers, embeddings, logits and communication left out.
    Lengths that do not fit in memory or in --seconds are left out, and said to be.

    The file is a cost: --cost calibration:FILE of simulate and advise, and
    evenstep.load_calibration(FILE) in a training. It holds for the device it was measured on.

    \b
    Example:
      evenstep profile --layers 32 --hidden-size 4096 --heads 32 --kv-heads 8 --ffn-size 14336 \\
          --out calibration.json
    """
    import torch

    from evenstep.profile import Calibration, ModelShape, measure_layer
    from evenstep.profile.device import choose_device, choose_dtype
    from evenstep.profile.text import calibration_text

    shape = ModelShape(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        ffn_size=ffn_size,
        kv_heads=kv_heads,
        causal=causal,
        gated=gated,
    )
    if out.is_dir():
        raise ConfigurationError(f"--out {out} is a folder; give a file")
    chosen = choose_device(device)
    dtype = choose_dtype(dtype, chosen)
    with progress_bar(f"measuring on {chosen}") as progress:
        measurements = measure_layer(
            shape,
            device=chosen,
            dtype=dtype,
            max_length=max_length,
            seconds=seconds,
            progress=progress,
        )
    calibration = Calibration.of(
        measurements, shape=shape, device=chosen, dtype=dtype, torch=torch.__version__
    )
    calibration.write(out)
    if json:
        print_json(calibration.as_dict())
    else:
        print(calibration_text(calibration))
    note(f"written: {out}; use it with --cost calibration:{out}")
