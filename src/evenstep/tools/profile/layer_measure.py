"""Times one layer over lengths, within a given time.

Lengths double from one to the next. The time of a length is bounded by that of the one before:
twice its rest and four times its attention. So a length that does not fit in the remaining time is
not started, and one that does not fit in memory is the last; the shorter ones are enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.tools.profile.layer_parts import Layer, LayerParts
from evenstep.tools.profile.model_on_device import DTYPES, Device, ModelShape
from evenstep.tools.profile.timer import Timing, free_memory, ran_out_of_memory, time_in_turn

Progress = Callable[[int, int], None]
"""Called with (done, total) lengths."""
TimeLength = Callable[[int, float, float], tuple[Timing, Timing]]
"""From (length, share, limit), the latter in seconds, to timings of attention and rest."""

_LENGTHS = 9
_MULTIPLE = 16
_LEAST_SHARE = 0.02
"""Share of the whole time for one length."""
_CALLS = 6
"""Times that a length runs each part, about and at least: to prepare, to warm up, three repeats and
one in reserve."""


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
    """At most nine lengths, each twice the one before, the last one `max_length`.

    Raises:
        ConfigurationError: `max_length` is below 128, which gives too few lengths.
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
        device, dtype: as `choose_device` and `choose_dtype` return them.
        seconds: time for all lengths together, about.
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
            LayerParts(layer, length)  # loads libraries, which is not timed
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
        A measurement for each length. Exceptions other than out of memory are raised.
    """
    begin = clock()
    found: list[LengthMeasurement] = []
    stopped = ""
    for index, length in enumerate(lengths):
        left = seconds - (clock() - begin)
        detail = stopped
        if found and not stopped and (detail := _too_long(found[-1], length, left)):
            stopped = f"{length:,} would already have taken too long"
        if detail:
            found.append(LengthMeasurement(length=length, outcome="skipped", detail=detail))
        else:
            # Equally many repeats of all lengths, about, and more of the short ones, which vary.
            share = max(left * length / sum(lengths[index:]), _LEAST_SHARE * seconds)
            found.append(_one(time_length, length, share, left))
            if found[-1].outcome != "ok":
                stopped = f"{length:,} already ran out of memory"
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
    """Why `length` cannot be measured in the seconds left; empty if it can."""
    if before.attention is None or before.rest is None:
        return before.detail
    growth = length / before.length
    once = growth * (growth * before.attention.seconds + before.rest.seconds)
    if _CALLS * once <= left:
        return ""
    return f"{_CALLS} passes of up to {once:,.2g} s do not fit in the {max(left, 0):,.2g} s left"
