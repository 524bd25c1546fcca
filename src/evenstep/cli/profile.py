"""``evenstep profile``: what attention and the rest of a model cost on the hardware at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.output import note, print_json, progress_bar
from evenstep.cli.shared_options import Json
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least

if TYPE_CHECKING:
    from evenstep.tools.profile.model_on_device import Device


def command(
    layers: Annotated[
        int | None, typer.Option(help="Layers of the model. One of them is measured.")
    ] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Width of the residual stream.")] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            help="Attention heads: of the model, or with --attention of one GPU.",
            show_default="8 with --attention, else required",
        ),
    ] = None,
    ffn_size: Annotated[
        int | None, typer.Option(help="Inner width of the feed-forward network.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The calibration file to write.",
            show_default="attention-latency.json with --attention, else required",
        ),
    ] = None,
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
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Longest document to measure; with --attention, the most keys.",
            show_default="32768; with --attention 131072 on a GPU, 2048 on a CPU",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time for all measurements, about.", show_default="60, with --quick 10"),
    ] = None,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Instead, measure the attention kernel over numbers of queries and keys.",
        ),
    ] = False,
    kernel: Annotated[
        str, typer.Option(help="With --attention: auto, flash, flex or sdpa.")
    ] = "auto",
    head_size: Annotated[
        int | None,
        typer.Option(
            help="With --attention: elements of a head.",
            show_default="--hidden-size / --heads, or 128",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --attention: measure fewer shapes.")
    ] = False,
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

    --attention measures the kernel that computes fragments of documents on context-parallel ranks:
    its operations a second over numbers of queries and keys.
    evenstep.context_parallel.latency.load_latency(FILE) predicts its time, and
    WorkloadPacking(latency=...) chooses a sharding by it. Give the heads that one GPU computes.

    \b
    Examples:
      evenstep profile --layers 32 --hidden-size 4096 --heads 32 --kv-heads 8 --ffn-size 14336 \\
          --out calibration.json
      evenstep profile --attention --heads 8 --kv-heads 2 --head-size 128 --out attention.json
    """
    if attention:
        _refuse("does not apply to --attention", layers=layers, ffn_size=ffn_size)
        if not (gated and causal):
            raise ConfigurationError("--attention is causal and has no feed-forward network")
    else:
        _refuse("applies to --attention only", quick=quick or None, head_size=head_size)
    model = {"layers": layers, "hidden_size": hidden_size, "heads": heads, "ffn_size": ffn_size}
    missing = [
        f"--{name.replace('_', '-')}"
        for name, value in {**model, "out": out}.items()
        if value is None
    ]
    if missing and not attention:
        raise ConfigurationError(
            f"{', '.join(missing)} must be given, for the model that is measured; --attention "
            "needs none"
        )
    out = out or Path("attention-latency.json")
    if out.is_dir():
        raise ConfigurationError(f"--out {out} is a folder; give a file")
    from evenstep.tools.profile.model_on_device import choose_device, choose_dtype

    chosen = choose_device(device)
    common: dict[str, Any] = {
        "device": chosen,
        "dtype": choose_dtype(dtype, chosen),
        "seconds": seconds if seconds is not None else 10.0 if quick else 60.0,
    }
    if attention:
        heads = 8 if heads is None else heads
        check_at_least(1, heads=heads)
        if head_size is None:
            head_size = 128 if hidden_size is None else hidden_size // heads
        if max_length is None:
            max_length = 131_072 if chosen.kind == "cuda" else 2048
        shape = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size}
        found, text = _attention(out, shape, kernel, max_length=max_length, quick=quick, **common)
        use = "use it with evenstep.context_parallel.latency.load_latency"
    else:
        layer = {**model, "kv_heads": kv_heads, "gated": gated, "causal": causal}
        longest = 32_768 if max_length is None else max_length
        found, text = _layer(out, layer, max_length=longest, **common)
        use = f"use it with --cost calibration:{out}"
    if json:
        print_json(found)
    else:
        print(text)
    note(f"written: {out}; {use}")


def _refuse(why: str, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')} {why}; leave it out")


def _layer(
    out: Path, shape: dict[str, Any], *, device: Device, dtype: str, **limits: Any
) -> tuple[dict[str, Any], str]:
    """Measures a layer and writes its file; returns it as JSON and as text."""
    import torch

    from evenstep.tools.profile import Calibration, ModelShape, measure_layer
    from evenstep.tools.profile.calibration_text import calibration_text

    model = ModelShape(**shape)
    with progress_bar(f"measuring on {device}") as progress:
        measured = measure_layer(model, device=device, dtype=dtype, progress=progress, **limits)
    calibration = Calibration.of(
        measured, shape=model, device=device, dtype=dtype, torch=torch.__version__
    )
    calibration.write(out)
    return calibration.as_dict(), calibration_text(calibration)


def _attention(
    out: Path, shape: dict[str, Any], kernel: str, *, device: Device, dtype: str, **limits: Any
) -> tuple[dict[str, Any], str]:
    """Measures attention and writes its file; returns it as JSON and as text."""
    from evenstep.tools.profile.attention import Heads, choose_kernel, measure_attention
    from evenstep.tools.profile.attention_profile import attention_text

    heads = Heads(**shape)
    chosen = choose_kernel(kernel, device, dtype)
    with progress_bar(f"measuring attention on {device}") as progress:
        profile = measure_attention(
            chosen, heads, device=device, dtype=dtype, progress=progress, **limits
        )
    profile.save(out)
    found = {"latency": profile.latency.as_dict(), "measured": profile.as_dict()}
    return found, attention_text(profile)
