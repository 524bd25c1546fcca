"""Times one layer over lengths, within a given time.

Lengths go upward, each twice the one before. What a length would take at most is known from the one
before: twice its rest and four times its attention. So a length that does not fit in the time left
is not begun, and one that does not fit in memory ends the way upward; the shorter ones are enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.tools.out_of_memory import free_memory, ran_out_of_memory
from evenstep.tools.profile.device import DTYPES, Device
from evenstep.tools.profile.layer_parts import Layer, LayerParts
from evenstep.tools.profile.model_shape import ModelShape
from evenstep.tools.profile.timer import Timing, time_in_turn

__all__ = ["LengthMeasurement", "lengths_up_to", "measure_layer", "measure_upward"]

Progress = Callable[[int, int], None]
"""Of (done, total) lengths."""
TimeLength = Callable[[int, float, float], tuple[Timing, Timing]]
"""Attention and rest of (length, share, limit), both in seconds."""

_LENGTHS = 9
_MULTIPLE = 16
_LEAST_SHARE = 0.02
"""Of all the time, for one length."""
_CALLS = 6
"""A length runs each part about this often at least: to prepare it, to warm up, three times, and
one to spare."""


@dataclass(frozen=True, kw_only=True)
class LengthMeasurement:
    """One layer at one length, forward and backward."""

    length: int
    outcome: str = "ok"
    """"ok", "out of memory" or "skipped"."""
    detail: str = ""
    attention: Timing | None = None
    rest: Timing | None = None


def lengths_up_to(max_length: int) -> list[int]:
    """Nine lengths or fewer, each twice the one before, the last one `max_length`.

    Raises:
        ConfigurationError: below 128 tokens, where there are too few.
    """
    check_at_least(8 * _MULTIPLE, max_length=max_length)
    halved = [max_length >> power for power in range(1, _LENGTHS)]
    rounded = [length - length % _MULTIPLE for length in halved if length >= _MULTIPLE]
    return [*reversed(rounded), max_length]


def measure_layer(
    shape: ModelShape,
    *,
    device: Device,
    dtype: str,
    max_length: int,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> list[LengthMeasurement]:
    """Times one layer of a model over lengths up to `max_length`.

    Args:
        device, dtype: as `choose_device` and `choose_dtype` give them.
        seconds: for all lengths together, about.
        progress: called with (done, total) lengths.

    Raises:
        ConfigurationError: an argument is out of range.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"seconds={seconds} must be positive and finite")
    lengths = lengths_up_to(max_length)
    layer = Layer(shape, device=device.kind, dtype=DTYPES[dtype])

    def time_length(length: int, share: float, limit: float) -> tuple[Timing, Timing]:
        if length == lengths[0]:
            LayerParts(layer, length)  # loads libraries, which is the time of no length
        parts = LayerParts(layer, length)
        attention, rest = time_in_turn(
            (parts.attention, parts.rest),
            synchronize=device.synchronize,
            share=share,
            limit=limit,
        )
        return attention, rest

    return measure_upward(lengths, time_length, seconds=seconds, progress=progress)


def measure_upward(
    lengths: Sequence[int],
    time_length: TimeLength,
    *,
    seconds: float,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[LengthMeasurement]:
    """Times `lengths` with `time_length`, upward, as far as time and memory allow.

    Returns:
        One for each length; exceptions other than for want of memory are raised.
    """
    begin = clock()
    found: list[LengthMeasurement] = []
    stopped = ""
    for index, length in enumerate(lengths):
        left = seconds - (clock() - begin)
        detail = stopped
        if found and not stopped and (detail := _too_long(found[-1], length, left)):
            stopped = f"{length:,} would have taken too long already"
        if detail:
            found.append(LengthMeasurement(length=length, outcome="skipped", detail=detail))
        else:
            # About as many repeats of one length as of another; more of short ones, which vary.
            share = max(left * length / sum(lengths[index:]), _LEAST_SHARE * seconds)
            found.append(_one(time_length, length, share, left))
            if found[-1].outcome != "ok":
                stopped = f"{length:,} ran out of memory already"
        if progress is not None:
            progress(index + 1, len(lengths))
    return found


def _one(time_length: TimeLength, length: int, share: float, limit: float) -> LengthMeasurement:
    detail = None
    try:
        attention, rest = time_length(length, share, limit)
    except Exception as error:
        if not ran_out_of_memory(error):
            raise
        detail = " ".join(str(error).partition("\n")[0].split())
    if detail is None:
        return LengthMeasurement(length=length, attention=attention, rest=rest)
    free_memory()
    return LengthMeasurement(length=length, outcome="out of memory", detail=detail)


def _too_long(before: LengthMeasurement, length: int, left: float) -> str:
    """Why `length` cannot be measured in the seconds left; empty where it can."""
    if before.attention is None or before.rest is None:
        return before.detail
    growth = length / before.length
    once = growth * (growth * before.attention.seconds + before.rest.seconds)
    if _CALLS * once <= left:
        return ""
    return f"{_CALLS} passes of up to {once:,.2g} s do not fit in the {max(left, 0):,.2g} s left"
