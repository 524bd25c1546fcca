"""The calibration file: the device, the measurements, and the cost that follows from them.

It is JSON, which people can read too, for one model on one device. The coefficients are those of
the whole model, the measurements those of one layer. A digest over the content detects a file that
was damaged or edited, which would silently balance a training wrongly.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError, parsing
from evenstep.files import MeasuredFile
from evenstep.tools.profile.device import Device
from evenstep.tools.profile.layer_fit import PartFits, fit_parts
from evenstep.tools.profile.layer_measure import LengthMeasurement
from evenstep.tools.profile.model_shape import ModelShape
from evenstep.tools.profile.timer import Timing

_FILE = MeasuredFile(
    format="evenstep calibration",
    name="calibration",
    version=1,
    again="recreate it with evenstep profile",
    by_hand="To change coefficients by hand, use evenstep.FittedCost",
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
