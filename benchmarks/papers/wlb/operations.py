"""Figure 7: what operations take by length, measured on this CPU.

With the parts of ``evenstep profile``, in processor time, whatever else the machine does.
"""

from __future__ import annotations

import time

from benchmarks.papers.outcome import Outcome, Table
from evenstep.tools.profile import ModelShape
from evenstep.tools.profile.layer_measure import Layer, LayerParts, lengths_up_to, measure_upward
from evenstep.tools.profile.model_on_device import DTYPES, choose_device, choose_dtype
from evenstep.tools.profile.timer import time_in_turn

SECONDS = 12.0
CLOCK = time.process_time
SHAPE, LONGEST = ModelShape(layers=1, hidden_size=512, heads=4, ffn_size=1376), 4096
"""An eighth of a 7B layer's width."""


def figure_7(seed: int) -> Outcome:
    """One layer, forward and backward; nothing in it is random."""
    device = choose_device("cpu")
    layer = Layer(SHAPE, device=device.kind, dtype=DTYPES[choose_dtype(None, device)])
    LayerParts(layer, 32)  # loads libraries

    def time_length(length: int, share: float, limit: float) -> tuple[float, float]:
        parts = LayerParts(layer, length)
        attention, rest = time_in_turn(
            (parts.attention, parts.rest),
            synchronize=device.synchronize,
            share=share,
            limit=limit,
            clock=CLOCK,
        )
        return attention, rest

    lengths = lengths_up_to(LONGEST)
    found = [
        (m.length, *m.seconds)
        for m in measure_upward(lengths, time_length, seconds=SECONDS, clock=CLOCK)
        if m.seconds is not None
    ]
    rows = [
        [f"{n:,}", f"{1e3 * own:.2f}", f"{1e3 * rest:.2f}", f"{own / (own + rest):.0%}"]
        for n, own, rest in found
    ]
    header = ["tokens", "attention, ms", "all else, ms", "attention's share"]
    (_, *before), (_, *last) = found[-2:]
    times = " and ".join(f"{b / a:.1f}" for a, b in zip(before, last))
    return Outcome(
        [Table(header, rows, f"{device}, width {SHAPE.hidden_size:,}")],
        "attention quadratic, all else linear",
        f"{times} times from {rows[-2][0]} to {rows[-1][0]} tokens",
    )
