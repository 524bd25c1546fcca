"""What does my model cost on my hardware? Answered by measuring one layer, or attention alone.

One layer is timed over lengths, attention and everything else separately. Attention grows with the
square of a document's length, the rest with its tokens, so two small fits give the coefficients of
a `FittedCost`. A *calibration* is a file with these and all measurements.

```
model_on_device    the shape of the model, and the hardware
layer_measure      times a layer in two parts, attention and rest, over lengths, with timer
calibration        the coefficients, and their file; calibration_text: a report of it
attention          times kernels over (queries, keys), for context parallelism
attention_profile  the measurements, and a report of them
```
"""

from evenstep.tools.profile.calibration import (
    Calibration,
    PartFits,
    load_calibration,
    read_calibration,
)
from evenstep.tools.profile.layer_measure import LengthMeasurement, measure_layer
from evenstep.tools.profile.model_on_device import Device, ModelShape
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
