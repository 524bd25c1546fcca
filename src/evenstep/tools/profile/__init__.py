"""What a model of a given shape costs on the hardware at hand.

One layer is timed over lengths, attention and everything else apart. Attention is what grows with
the square of a document's length, the rest grows with its tokens, so that two small fits give the
coefficients of a `FittedCost`. A *calibration* is a file with these and all that was measured.
"""

from evenstep.tools.profile.calibration import Calibration, load_calibration, read_calibration
from evenstep.tools.profile.device import Device
from evenstep.tools.profile.layer_fit import PartFits
from evenstep.tools.profile.layer_measure import LengthMeasurement, measure_layer
from evenstep.tools.profile.model_shape import ModelShape
from evenstep.tools.profile.timer import Timing

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
