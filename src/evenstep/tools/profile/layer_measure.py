"""Times one layer over lengths, within a given time.

Lengths double from one to the next. The time of a length is bounded by that of the one before:
twice its rest and four times its attention. So a length that does not fit in the remaining time is
not started, and one that does not fit in memory is the last; the shorter ones are enough.

The layer is of a transformer, in two parts that run separately: attention, and everything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least
from evenstep.tools.profile.model_on_device import DTYPES, Device, ModelShape
from evenstep.tools.profile.timer import free_memory, ran_out_of_memory, time_in_turn

Tensors = tuple[torch.Tensor, ...]


class Layer(nn.Module):
    """Pre-norm, rotary positions, no biases in the projections; takes [1, length, hidden_size]."""

    def __init__(self, shape: ModelShape, *, device: str, dtype: torch.dtype) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)

        hidden, key_size = shape.hidden_size, shape.key_heads * shape.head_size
        self.shape = shape
        self.attention_norm = nn.LayerNorm(hidden, device=device, dtype=dtype)
        self.query_key_value = linear(hidden, hidden + 2 * key_size)
        self.attention_out = linear(hidden, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, device=device, dtype=dtype)
        self.ffn_in = linear(hidden, (2 if shape.gated else 1) * shape.ffn_size)
        self.ffn_out = linear(shape.ffn_size, hidden)

    def project(self, x: torch.Tensor, rotation: torch.Tensor) -> Tensors:
        """Queries [1, heads, length, head_size], and keys and values [1, key_heads, ...]."""
        rows, length, _ = x.shape
        queries, keys = self.shape.heads, self.shape.key_heads
        mixed = self.query_key_value(self.attention_norm(x))
        mixed = mixed.view(rows, length, queries + 2 * keys, self.shape.head_size).transpose(1, 2)
        query, key, value = mixed.split([queries, keys, keys], dim=1)
        return _rotate(query, rotation), _rotate(key, rotation), value

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[1, heads, length, head_size]."""
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=self.shape.causal,
            enable_gqa=self.shape.heads != self.shape.key_heads,
        )

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output, from its input and the output of attention."""
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        inner = self.ffn_in(self.ffn_norm(x))
        if self.shape.gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * inner
        else:
            inner = F.gelu(inner)
        out: torch.Tensor = x + self.ffn_out(inner)
        return out

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        return self.finish(x, self.attend(*self.project(x, rotation)))


class LayerParts:
    """Both parts of a layer over one document, each with forward and backward pass."""

    def __init__(self, layer: Layer, length: int, *, seed: int = 0) -> None:
        self._layer = layer
        self._parameters_used = tuple(layer.parameters())
        like = self._parameters_used[0]
        generator = torch.Generator(like.device).manual_seed(seed)
        size = (1, length, layer.shape.hidden_size)
        self.x, self.gradient = (
            torch.randn(size, generator=generator, device=like.device, dtype=like.dtype)
            for _ in range(2)
        )
        self.rotation = _rotations(length, layer.shape.head_size).to(like)
        self.x.requires_grad_()
        with torch.no_grad():
            projected = layer.project(self.x, self.rotation)
            self._attended = layer.attend(*projected)
        self._projected = tuple(tensor.requires_grad_() for tensor in projected)
        self._attended.requires_grad_()
        # Each part's backward pass needs gradients from the other part.
        self._projected_gradients = tuple(map(torch.zeros_like, self._projected))
        self._attended_gradient = self.rest()[1].detach()
        self._projected_gradients = self.attention()

    def attention(self) -> Tensors:
        """Runs attention; returns the gradients of queries, keys and values."""
        attended = self._layer.attend(*self._projected)
        return torch.autograd.grad(attended, self._projected, self._attended_gradient)

    def rest(self) -> Tensors:
        """Runs the rest; returns the gradients of input, attention's output and parameters."""
        projected = self._layer.project(self.x, self.rotation)
        out = self._layer.finish(self.x, self._attended)
        return torch.autograd.grad(
            (*projected, out),
            (self.x, self._attended, *self._parameters_used),
            (*self._projected_gradients, self.gradient),
        )


def _rotations(length: int, size: int) -> torch.Tensor:
    """[2, length, size / 2] cosines and sines."""
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotates each pair (i, i + size / 2) of [..., length, size]."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


Progress = Callable[[int, int], None]
"""Called with (done, total) lengths."""
TimeLength = Callable[[int, float, float], tuple[float, float]]
"""From (length, share, limit), the latter in seconds, to seconds of attention and rest."""

_LENGTHS = 5
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
    seconds: tuple[float, float] | None = None
    """Of attention and the rest; None where they were not measured."""
    why_not: str = ""


def lengths_up_to(max_length: int) -> list[int]:
    """Five lengths, each twice the one before, the last one `max_length`.

    Raises:
        ConfigurationError: `max_length` is too small for them.
    """
    check_at_least(_MULTIPLE << (_LENGTHS - 1), max_length=max_length)
    halved = [max_length >> power for power in range(_LENGTHS - 1, 0, -1)]
    return [*(length - length % _MULTIPLE for length in halved), max_length]


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
    LayerParts(layer, lengths[0])  # loads libraries, which is not timed

    def time_length(length: int, share: float, limit: float) -> tuple[float, float]:
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
    why_not = ""
    for index, length in enumerate(lengths):
        left = seconds - (clock() - begin)
        if found and not why_not:
            why_not = _too_long(found[-1], length, left)
        measured = None
        if not why_not:
            # Equally many repeats of all lengths, about, and more of the short ones, which vary.
            share = max(left * length / sum(lengths[index:]), _LEAST_SHARE * seconds)
            try:
                measured = time_length(length, share, left)
            except Exception as error:
                if not ran_out_of_memory(error):
                    raise
                why_not = f"out of memory at {length:,} tokens"
        if measured is None:
            free_memory()
        found.append(LengthMeasurement(length=length, seconds=measured, why_not=why_not))
        if progress is not None:
            progress(index + 1, len(lengths))
    return found


def _too_long(before: LengthMeasurement, length: int, left: float) -> str:
    """Why `length` cannot be measured in the seconds left; empty if it can."""
    assert before.seconds is not None
    (attention, rest), growth = before.seconds, length / before.length
    once = growth * (growth * attention + rest)
    if _CALLS * once <= left:
        return ""
    return f"{_CALLS} passes of up to {once:,.2g} s do not fit in the {max(left, 0):,.2g} s left"
