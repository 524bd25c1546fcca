"""What would I gain on my data, and which settings should I use? Answered before any training.

```
length_sources  the data, or some thousand samples of it   -> LengthSample
length_sample   lengths                                    -> Summary: mean, percentiles, CV
model_on_gpu    a model's configuration, a GPU             -> ModelFacts: what fits, how fast
recommend       lengths, ranks                             -> max_tokens, target_tokens, batch_size
predict         lengths, settings                          -> every policy's figures
advice          all of these                               -> Advice, with notes
```

`length_sources` reads lines of JSON itself, other formats with `parquet_sample`; `token_counter`
turns values into lengths. Speed-ups are predictions under a stated cost model, made by running the
policies themselves over the lengths: see `evenstep.tools.simulate`.
"""

from evenstep.tools.advise.advice import Advice, advise
from evenstep.tools.advise.length_sample import LengthSample, Summary
from evenstep.tools.advise.length_sources import draw_length_sample
from evenstep.tools.advise.predict import Prediction
from evenstep.tools.advise.recommend import set_up

__all__ = [
    "Advice",
    "LengthSample",
    "Prediction",
    "Summary",
    "advise",
    "draw_length_sample",
    "set_up",
]
