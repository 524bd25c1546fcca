"""What a model of a given shape costs on the hardware at hand.

One layer is timed over lengths, attention and everything else apart. Attention is what grows with
the square of a document's length, the rest grows with its tokens, so that two small fits give the
coefficients of a `FittedCost`. A *calibration* is a file with these and all that was measured.
"""

from evenstep.profile.calibration import Calibration, load_calibration, read_calibration
from evenstep.profile.device import Device
from evenstep.profile.fitting import PartFits
from evenstep.profile.measure import LengthMeasurement, measure_layer
from evenstep.profile.shape import ModelShape
from evenstep.profile.timing import Timing

__all__ = [
    "Calibration",
    "Device",
    "LengthMeasurement",
    "ModelShape",
    "PartFits",
    "Timing",
    "load_calibration",
    "measure_layer",
    "read_calibration",
]
