"""A calibration from times that follow a known law."""

from __future__ import annotations

from dataclasses import replace

from evenstep.tools.profile import Calibration, Device, LengthMeasurement, ModelShape, Timing

__all__ = ["LAYERS", "known_calibration"]

LAYERS = 10


def known_calibration(*, pair: float = 1e-9, slow: float = 1.0) -> Calibration:
    """A layer takes `pair` seconds per squared token in attention, and the rest 1e-4 s and 4e-6 s
    per token; at its last length `slow` times that. A longer one ran out of memory."""

    def timing(seconds: float) -> Timing:
        return Timing(seconds=seconds, low=0.99 * seconds, high=1.01 * seconds, repeats=5)

    measured = [
        LengthMeasurement(
            length=length,
            attention=timing(1e-7 + pair * length**2),
            rest=timing(1e-4 + 4e-6 * length),
        )
        for length in (256, 512, 1024, 2048, 4096)
    ]
    last = measured[-1]
    if last.rest is not None:
        measured[-1] = replace(last, rest=timing(slow * last.rest.seconds))
    beyond = LengthMeasurement(length=8192, outcome="out of memory", detail="tried 2 GiB")
    return Calibration.of(
        [*measured, beyond],
        shape=ModelShape(layers=LAYERS, hidden_size=512, heads=8, ffn_size=1408),
        device=Device(kind="cpu", name="Abacus 3000", threads=2),
        dtype="fp32",
        torch="2.5.0",
    )
