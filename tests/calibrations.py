"""A calibration from times that follow a known law."""

from __future__ import annotations

from evenstep.tools.profile import Calibration, Device, LengthMeasurement, ModelShape

__all__ = ["LAYERS", "known_calibration"]

LAYERS = 10


def known_calibration(*, pair: float = 1e-9, slow: float = 1.0) -> Calibration:
    """A layer takes `pair` seconds per squared token in attention, and the rest 1e-4 s and 4e-6 s
    per token; at its last length `slow` times that. A longer one ran out of memory."""
    measured = [
        LengthMeasurement(
            length=length,
            seconds=(
                1e-7 + pair * length**2,
                (1e-4 + 4e-6 * length) * (slow if length == 4096 else 1.0),
            ),
        )
        for length in (256, 512, 1024, 2048, 4096)
    ]
    beyond = LengthMeasurement(length=8192, why_not="out of memory at 8,192 tokens")
    return Calibration.of(
        [*measured, beyond],
        shape=ModelShape(layers=LAYERS, hidden_size=512, heads=8, ffn_size=1408),
        device=Device(kind="cpu", name="Abacus 3000", threads=2),
        dtype="fp32",
        torch="2.5.0",
    )
