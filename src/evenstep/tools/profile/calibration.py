"""The calibration file: the device, the measurements, and the cost that follows from them.

It is JSON, which people can read too, for one model on one device. The coefficients are those of
the whole model, the measurements those of one layer. A digest over the content detects a file that
was damaged or edited, which would silently balance a training wrongly.

Coefficients are fitted to the seconds of both parts of a layer. Attention over a document of l
tokens takes ``a0 + a1 l + a2 l²`` seconds and the rest ``r0 + r1 l``. No coefficient is negative,
and r0 is at most half of the rest at the longest length measured. So where even that length takes
no longer than its launches, a token still takes something.

The parts are fitted separately: in their sum, a rest that gets faster per token as matrices grow
would look like less attention. Errors are relative to the whole layer at that length, so that short
documents count as much as long ones, and the launch overhead of their attention only as much as it
matters.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.cost import FittedCost
from evenstep.cost.fitting import not_negative
from evenstep.errors import ConfigurationError, parsing
from evenstep.files import read_json, write_whole
from evenstep.tools.profile.layer_measure import LengthMeasurement
from evenstep.tools.profile.model_on_device import Device, ModelShape
from evenstep.tools.report.table import text_table

_FEWEST_LENGTHS = 4
"""One more than the coefficients of attention: a fit to fewer lengths would follow the noise."""
_NOTHING = 1e-6
"""A term below this share of its part at all lengths is rounding, and set to zero."""
_POOR_FIT = 0.15


def fit_parts(lengths: npt.ArrayLike, attention: npt.ArrayLike, rest: npt.ArrayLike) -> FittedCost:
    """Fits both parts of a layer.

    Args:
        lengths: [lengths] tokens, ascending.
        attention, rest: [lengths] seconds at each, positive.

    Raises:
        ConfigurationError: fewer than four lengths.
    """
    length, first, second = (
        np.asarray(values, dtype=np.float64) for values in (lengths, attention, rest)
    )
    if len(length) < _FEWEST_LENGTHS:
        raise ConfigurationError(
            f"{len(length)} lengths were measured, and a fit needs {_FEWEST_LENGTHS}; give more "
            "--seconds, or a smaller --max-length"
        )
    whole, unit = first + second, length / length.max()  # powers of `unit` are of similar size
    a1, a0, a2 = _fitted([unit, unit**0, unit**2], first, whole)
    r1, r0 = _fitted([unit, 1 + unit], second, whole)
    longest = float(length.max())
    return FittedCost(
        per_group=a0 + r0, per_token=(a1 + r0 + r1) / longest, per_pair=a2 / longest**2
    )


def _fitted(
    terms: Sequence[Float64Array], seconds: Float64Array, whole: Float64Array
) -> list[float]:
    """The coefficients of `terms` ([lengths] each)."""
    solution = not_negative(np.stack(terms, axis=1) / whole[:, None], seconds / whole)
    solution[solution < _NOTHING * seconds.max()] = 0
    return [float(value) for value in solution]


_FORMAT, _VERSION = "evenstep calibration", 1
_AGAIN = "recreate it with evenstep profile"

logger = logging.getLogger("evenstep")


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Measurements of one layer of a model on a device."""

    shape: ModelShape
    device: Device
    dtype: str
    torch: str
    """Version of PyTorch."""
    measurements: tuple[LengthMeasurement, ...]
    layer: FittedCost
    """Of one layer, in seconds."""

    @classmethod
    def of(
        cls,
        measurements: Sequence[LengthMeasurement],
        *,
        shape: ModelShape,
        device: Device,
        dtype: str,
        torch: str,
    ) -> Calibration:
        """Fits coefficients to the measurements of `measure_layer`.

        Raises:
            ConfigurationError: fewer than four lengths could be measured.
        """
        timed = [(m.length, *m.seconds) for m in measurements if m.seconds]
        try:
            layer = fit_parts(*np.array(timed).reshape(-1, 3).T)
        except ConfigurationError as error:
            others = dict.fromkeys(m.why_not for m in measurements if m.why_not)
            raise ConfigurationError("; ".join([str(error), *others])) from error
        return cls(
            shape=shape,
            device=device,
            dtype=dtype,
            torch=str(torch),  # PyTorch's version is a subclass of str
            measurements=tuple(measurements),
            layer=layer,
        )

    @property
    def cost(self) -> FittedCost:
        """Cost of the whole model, in seconds."""
        return FittedCost(**{n: self.shape.layers * each for n, each in asdict(self.layer).items()})

    @property
    def linear(self) -> float | None:
        """Tokens of the document whose attention costs as much as everything else: the argument of
        ``DocumentCost(linear=...)``. None if attention was too fast to be measured."""
        cost = self.cost
        return cost.per_token / cost.per_pair if cost.per_pair > 0 else None

    def fitted(self, length: int) -> float:
        """Seconds of one layer at `length`, by the fit."""
        layer = self.layer
        return layer.per_group + length * (layer.per_token + length * layer.per_pair)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the file. The seconds of measurements are those of one layer."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "device": asdict(self.device),
            "torch": self.torch,
            "dtype": self.dtype,
            "shape": asdict(self.shape),
            "coefficients": asdict(self.cost),
            "linear": self.linear,
            "measurements": [
                {**asdict(m), "fitted": self.fitted(m.length)} for m in self.measurements
            ],
        }
        return {**content, "digest": _digest(content)}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all."""
        write_whole(path, json.dumps(self.as_dict(), indent=2, allow_nan=False) + "\n")

    def text(self) -> str:
        """A table of the measurements, the coefficients and how far to trust them, for people."""
        rows, notes = [], []
        for m in self.measurements:
            row = [f"{m.length:,}", "-", "-", _ms(self.fitted(m.length))]
            if m.seconds is None:
                notes.append(f"note: {m.length:,} was not measured: {m.why_not}")
            else:
                row[1:3] = map(_ms, m.seconds)
                error = self.fitted(m.length) / sum(m.seconds) - 1
                if abs(error) > _POOR_FIT:
                    notes.append(f"note: the fit is off by {error:+.0%} at {m.length:,}")
            rows.append(row)
        title = (
            f"one layer, forward and backward, on {self.device}, {self.dtype}, PyTorch {self.torch}"
        )
        header = ("length", "attention ms", "rest ms", "both, fitted ms")
        cost, linear, operations = self.cost, self.linear, self.shape.operations
        coefficients = (
            f"{self.shape.layers} equal layers: {cost.per_group:.3g} s per group, "
            f"{cost.per_token:.3g} s per token, {cost.per_pair:.3g} s per squared token"
        )
        crossing = "attention was too fast to be measured: measure longer documents"
        if linear is not None:
            crossing = (
                f"attention costs as much as the rest at {linear:,.0f} tokens; by operations, at "
                f"{operations.per_token / operations.per_pair:,.0f}"
            )
        table = text_table(header, rows, title=title)
        return "\n".join([table, "", coefficients, crossing, *notes])


def load_calibration(path: str | os.PathLike[str]) -> FittedCost:
    """The cost of a model as `evenstep profile` measured it, in seconds. Logs the device.

    Raises:
        ConfigurationError: there is no such file, another program or version wrote it, or it has
            changed since then.
    """
    content = read_json(path, again=_AGAIN)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ConfigurationError(f"{path} is not an evenstep calibration; {_AGAIN}")
    if content.get("version") != _VERSION:
        raise ConfigurationError(
            f"{path} is of version {content.get('version')!r}, and this evenstep reads version "
            f"{_VERSION}; {_AGAIN}"
        )
    if content.pop("digest", None) != _digest(content):
        raise ConfigurationError(
            f"{path} is damaged: it is not what was written; {_AGAIN}. To change coefficients by "
            "hand, use evenstep.cost.FittedCost"
        )
    with parsing(path, remedy=_AGAIN):
        device, cost = Device(**content["device"]), FittedCost(**content["coefficients"])
        logger.info("%s: measured on %s, %s", path, device, content["dtype"])
    return cost


def _digest(content: dict[str, Any]) -> str:
    """SHA-256 of the JSON text, which is the same before writing and after reading."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _ms(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
