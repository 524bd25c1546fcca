"""Which `max_tokens` should I train with? Short runs of the training answer it: ODB, section 3.1.

A search tries the values of a grid upward. Each *candidate* trains for some *measured steps*; the
samples it emitted per second are its throughput. The choice is the smallest value within a band
below the fastest one: near the top, throughput hardly grows with `max_tokens`, while memory does.
Losses play no part.

```
grid            the values to try
search          the search over a function of this process, and the loop over the grid
command         the same over a command: trial_run and guard start and end it, step_files reads
                its steps, diagnosis says why it failed
measurement     which steps count, their throughput and its error
candidate       one value and its outcome
ranking         the rule that chooses, and result: what is reported
```
"""

from evenstep.tools.tune.candidate import Candidate, NothingSurvivedError
from evenstep.tools.tune.command import tune_command
from evenstep.tools.tune.grid import grid_upward
from evenstep.tools.tune.measurement import MeasuredSteps, Measurement, StepTime, measure
from evenstep.tools.tune.ranking import BAND, choose, ranking
from evenstep.tools.tune.result import TuneResult
from evenstep.tools.tune.search import search

__all__ = [
    "BAND",
    "Candidate",
    "MeasuredSteps",
    "Measurement",
    "NothingSurvivedError",
    "StepTime",
    "TuneResult",
    "choose",
    "grid_upward",
    "measure",
    "ranking",
    "search",
    "tune_command",
]
