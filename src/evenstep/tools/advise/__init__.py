"""What a user would gain on their data, and which settings to take, told before any training.

```
sketch      the data, or some thousand samples of it    out: lengths
summary     lengths                                     out: mean, percentiles, CV, f_s
recommend   summary, ranks                              out: max_tokens, buffer_size, batch_size
predict     lengths, settings                           out: every policy's figures, with ranges
```

All that is said of speed is a prediction under a stated cost model, made by running the policies
themselves over the lengths: see `evenstep.tools.simulate`.
"""

from evenstep.tools.advise.advice import Advice, advise
from evenstep.tools.advise.figure_range import Range
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.length_sources import draw_sketch
from evenstep.tools.advise.predict import Prediction
from evenstep.tools.advise.recommend import Recommendation
from evenstep.tools.advise.summary import Summary, summarize

__all__ = [
    "Advice",
    "LengthSample",
    "Prediction",
    "Range",
    "Recommendation",
    "Summary",
    "advise",
    "draw_sketch",
    "summarize",
]
