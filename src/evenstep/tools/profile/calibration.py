"""The calibration file: the device, the measurements, and the cost that follows from them.

It is JSON, which people can read too, for one model on one device. The coefficients are those of
the whole model, the measurements those of one layer. A digest over the content detects a file that
was damaged or edited, which would silently balance a training wrongly.

Coefficients are fitted to the seconds of both parts of a layer. Attention over a document of l
tokens takes ``max(a, a0 + a1 l + a2 l²)`` seconds and the rest ``max(r, r0 + r1 l)``. The floors a
and r are what launches take: a GPU computes short documents faster than their operations are
launched. No coefficient is negative, and r0 is at most half of the rest at the longest length
measured. So where even that length is on the floor, a token takes the floor over as many tokens, or
half of it: too much, but never 0.

The parts are fitted separately: in their sum, a rest that gets faster per token as matrices grow
would look like less attention. Errors are relative to the whole layer at that length, so that short
documents count as much as long ones, and the launch overhead of their attention only as much as it
matters.
"""

from __future__ import annotations

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
from evenstep.files import MeasuredFile
from evenstep.tools.profile.layer_measure import LengthMeasurement
from evenstep.tools.profile.model_on_device import Device, ModelShape
from evenstep.tools.profile.timer import Timing

_FEWEST_LENGTHS = 4
"""One more than the coefficients of attention: a fit to fewer lengths would follow the noise."""

_NOTHING = 1e-6
"""A term below this share of its part at all lengths is rounding, and set to zero."""


@dataclass(frozen=True, kw_only=True)
class PartFits:
    """Seconds of both parts of one layer, as polynomials of the length, lowest power first."""

    attention: tuple[float, float, float]
    rest: tuple[float, float]
    floors: tuple[float, float] = (0.0, 0.0)
    """What attention and the rest take at least; 0 where no length was so short."""

    def cost(self, layers: int) -> FittedCost:
        """Cost of a model with this number of equal layers, of groups above the floor."""
        overhead, token, pair = self.attention
        return FittedCost(
            per_group=layers * (overhead + self.rest[0]),
            per_token=layers * (token + self.rest[1]),
            per_pair=layers * pair,
        )


def fit_parts(lengths: npt.ArrayLike, attention: npt.ArrayLike, rest: npt.ArrayLike) -> PartFits:
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
    a, (a1, a0, a2) = _above_a_floor([unit, unit**0, unit**2], first, whole)
    r, (r1, r0) = _above_a_floor([unit, 1 + unit], second, whole)
    _, token, pair = (float(value) for value in length.max() ** -np.arange(3.0))
    return PartFits(
        attention=(a0, a1 * token, a2 * pair), rest=(r0, (r0 + r1) * token), floors=(a, r)
    )


def _above_a_floor(
    terms: list[Float64Array], seconds: Float64Array, whole: Float64Array
) -> tuple[float, list[float]]:
    """The floor, and the coefficients of `terms` ([lengths] each) above it.

    Tries each number of lengths as those on the floor, which is their median: one slow measurement
    does not raise it.
    """
    columns = np.stack(terms, axis=1)
    found: list[tuple[float, float, Float64Array]] = []
    for on_floor in range(len(seconds)):
        floor = float(np.median(seconds[:on_floor])) if on_floor else 0.0
        above, scale = slice(on_floor, None), whole[on_floor:]
        solution = not_negative(columns[above] / scale[:, None], seconds[above] / scale)
        error = (np.maximum(floor, columns @ solution) - seconds) / whole
        found.append((float(error @ error), floor, solution))
    _, floor, solution = min(found, key=lambda each: round(each[0], 20))  # the first of equals
    solution[solution < _NOTHING * seconds.max()] = 0
    return floor, [float(value) for value in solution]


_FILE = MeasuredFile(
    format="evenstep calibration",
    name="calibration",
    version=1,
    again="recreate it with evenstep profile",
    by_hand="To change coefficients by hand, use evenstep.cost.FittedCost",
)

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
    """Includes lengths for which memory or time did not suffice, with outcomes other than ok."""
    fits: PartFits

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
        timed = [(m.length, m.attention, m.rest) for m in measurements if m.attention and m.rest]
        others = [f"{m.length:,}: {m.outcome} ({m.detail})" for m in measurements if not m.rest]
        try:
            fits = fit_parts(
                [length for length, _, _ in timed],
                [attention.seconds for _, attention, _ in timed],
                [rest.seconds for _, _, rest in timed],
            )
        except ConfigurationError as error:
            raise ConfigurationError("; ".join([str(error), *others])) from error
        return cls(
            shape=shape,
            device=device,
            dtype=dtype,
            torch=str(torch),  # PyTorch's version is a subclass of str
            measurements=tuple(measurements),
            fits=fits,
        )

    @property
    def cost(self) -> FittedCost:
        """Cost of the whole model, in seconds."""
        return self.fits.cost(self.shape.layers)

    @property
    def linear(self) -> float | None:
        """Tokens of the document whose attention costs as much as everything else: the argument of
        ``DocumentCost(linear=...)``. None if attention was too fast to be measured."""
        cost = self.cost
        return cost.per_token / cost.per_pair if cost.per_pair > 0 else None

    @property
    def longest(self) -> int:
        """Tokens of the longest document measured."""
        return max(m.length for m in self.measurements if m.outcome == "ok")

    def fitted(self, length: int) -> float:
        """Seconds of one layer at `length`, by the fit."""
        cost = self.fits.cost(1)
        above = cost.per_group + length * (cost.per_token + length * cost.per_pair)
        return max(sum(self.fits.floors), above)

    def error(self, measurement: LengthMeasurement) -> float | None:
        """Error of the fit, relative to the measurement: positive if the fit is too high."""
        if measurement.attention is None or measurement.rest is None:
            return None
        seconds = measurement.attention.seconds + measurement.rest.seconds
        return self.fitted(measurement.length) / seconds - 1

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the file. The seconds of measurements are those of one layer."""
        return _FILE.content(self._values())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all."""
        _FILE.write(path, self._values())

    def _values(self) -> dict[str, Any]:
        return {
            "device": asdict(self.device),
            "torch": self.torch,
            "dtype": self.dtype,
            "shape": asdict(self.shape),
            "coefficients": asdict(self.cost),
            "linear": self.linear,
            "layer_fits": {name: list(values) for name, values in asdict(self.fits).items()},
            "measurements": [
                {**asdict(m), "fitted": self.fitted(m.length), "error": self.error(m)}
                for m in self.measurements
            ],
        }


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a file of `Calibration.write`.

    Raises:
        ConfigurationError: there is no such file, another program or version wrote it, or it has
            changed since then.
    """
    content = _FILE.read(path)
    with parsing(path, remedy=_FILE.again):
        fits = {name: tuple(values) for name, values in content["layer_fits"].items()}
        calibration = Calibration(
            shape=ModelShape(**content["shape"]),
            device=Device(**content["device"]),
            dtype=content["dtype"],
            torch=content["torch"],
            measurements=tuple(map(_measurement, content["measurements"])),
            fits=PartFits(**fits),
        )
        calibration.cost  # noqa: B018  (checks the coefficients)
    return calibration


def load_calibration(path: str | os.PathLike[str]) -> FittedCost:
    """The cost of a model as `evenstep profile` measured it, in seconds. Logs the device.

    Raises:
        ConfigurationError: there is no such file, another program or version wrote it, or it has
            changed since then.
    """
    calibration = read_calibration(path)
    logger.info("%s: measured on %s, %s", path, calibration.device, calibration.dtype)
    return calibration.cost


def _measurement(content: dict[str, Any]) -> LengthMeasurement:
    return LengthMeasurement(
        length=content["length"],
        outcome=content["outcome"],
        detail=content["detail"],
        attention=content["attention"] and Timing(**content["attention"]),
        rest=content["rest"] and Timing(**content["rest"]),
    )
