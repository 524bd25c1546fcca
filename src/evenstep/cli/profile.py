"""``evenstep profile``: what attention and the rest of a model cost on the hardware at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.output import note, print_json, progress_bar
from evenstep.cli.shared_options import Json


def command(
    *,
    layers: Annotated[int, typer.Option(help="Layers of the model. One of them is measured.")],
    hidden_size: Annotated[int, typer.Option(help="Width of the residual stream.")],
    heads: Annotated[int, typer.Option(help="Attention heads of the model.")],
    ffn_size: Annotated[int, typer.Option(help="Inner width of the feed-forward network.")],
    out: Annotated[Path, typer.Option(help="The calibration file to write.")],
    kv_heads: Annotated[
        int | None,
        typer.Option(help="Heads of keys and values, if fewer.", show_default="--heads"),
    ] = None,
    gated: Annotated[
        bool, typer.Option(help="Three feed-forward matrices (SwiGLU), or two (GELU).")
    ] = True,
    causal: Annotated[
        bool, typer.Option(help="Whether tokens attend to earlier tokens alone.")
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option(help="bf16, fp16 or fp32.", show_default="bf16 on a GPU, fp32 on a CPU"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_length: Annotated[int, typer.Option(help="Longest document to measure.")] = 32_768,
    seconds: Annotated[float, typer.Option(help="Time for all measurements, about.")] = 60.0,
    json: Json = False,
) -> None:
    """Measure what a model costs, and write a calibration file.

    Runs one layer forward and backward over single documents of several lengths, and times its
    attention and everything else separately. Two fits give seconds per token and per squared token.
    The coefficients are those of --layers such layers; embeddings, logits and communication are
    left out. Lengths that do not fit in memory or in --seconds are skipped and listed.

    The file is a cost: --cost calibration:FILE of simulate and advise, and
    evenstep.tools.profile.load_calibration(FILE) in a training. It is valid for the device it was
    measured on.

    \b
    Examples:
      evenstep profile --layers 32 --hidden-size 4096 --heads 32 --kv-heads 8 --ffn-size 14336 \\
          --out calibration.json
    """
    import torch

    from evenstep.tools.profile import Calibration, ModelShape, measure_layer
    from evenstep.tools.profile.model_on_device import choose_device, choose_dtype

    shape = ModelShape(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        ffn_size=ffn_size,
        kv_heads=kv_heads,
        gated=gated,
        causal=causal,
    )
    chosen = choose_device(device)
    of_device: dict[str, Any] = {"device": chosen, "dtype": choose_dtype(dtype, chosen)}
    limits: dict[str, Any] = {"max_length": max_length, "seconds": seconds}
    with progress_bar(f"measuring on {chosen}") as progress:
        measured = measure_layer(shape, progress=progress, **of_device, **limits)
    made = Calibration.of(measured, shape=shape, torch=torch.__version__, **of_device)
    made.write(out)
    if json:
        print_json(made.as_dict())
    else:
        print(made.text())
    note(f"written: {out}; use it with --cost calibration:{out}")
