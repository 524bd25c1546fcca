"""What would I gain on my data, and which settings should I use? Answered before any training.

```
length_sources  the data, or some thousand samples of it   -> LengthSample
length_sample   lengths                                    -> mean, percentiles, CV, f_s
recommend       summary, ranks                             -> max_tokens, target_tokens, batch_size
predict         lengths, settings                          -> every policy's figures, with ranges
notes           lengths, settings                          -> a note on samples longer than a step
                two predictions                            -> what two rules make of a learning rate
advice          all of these                               -> Advice
```

`length_sources` reads lines of JSON itself, other formats with `parquet_sample`; `token_counter`
turns values into lengths; a `Range` is a figure and its range. Speed-ups are predictions under a
stated cost model, made by running the policies themselves over the lengths: see
`evenstep.tools.simulate`.
"""

from evenstep.tools.advise.advice import Advice, advise
from evenstep.tools.advise.length_sample import LengthSample, Range, Summary, summarize
from evenstep.tools.advise.length_sources import draw_length_sample
from evenstep.tools.advise.predict import Prediction
from evenstep.tools.advise.recommend import Recommendation, set_up

__all__ = [
    "Advice",
    "LengthSample",
    "Prediction",
    "Range",
    "Recommendation",
    "Summary",
    "advise",
    "draw_length_sample",
    "set_up",
    "summarize",
]
