"""What does my model cost on my hardware? Answered by measuring one layer.

It is timed over lengths, attention and everything else separately. Attention grows with the square
of a document's length, the rest with its tokens, so two small fits give the coefficients of a
`FittedCost`. A *calibration* is a file with these and all measurements.

```
model_on_device    the shape of the model, and the hardware
layer_measure      times a layer in two parts, attention and rest, over lengths, with timer
calibration        the coefficients, and their file; a report of it
```
"""

from evenstep.tools.profile.calibration import Calibration, load_calibration
from evenstep.tools.profile.layer_measure import LengthMeasurement, measure_layer
from evenstep.tools.profile.model_on_device import Device, ModelShape

__all__ = [
    "Calibration",
    "Device",
    "LengthMeasurement",
    "ModelShape",
    "load_calibration",
    "measure_layer",
]
