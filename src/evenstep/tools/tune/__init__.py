"""The configuration search: short runs of a training over values of `max_tokens`, ODB section 3.1.

A search goes through its grid upward. Each *candidate* trains for a short *window*; what it emitted
per second is its throughput. The choice is the smallest value within a band below the fastest one:
near the top throughput hardly grows with `max_tokens`, while memory does. Losses play no part.
"""

from evenstep.tools.tune.candidate import Candidate, NothingSurvivedError
from evenstep.tools.tune.command import tune_command
from evenstep.tools.tune.grid import grid_upward
from evenstep.tools.tune.measurement import Measurement, StepTime, measure
from evenstep.tools.tune.ranking import BAND, choose, ranking
from evenstep.tools.tune.result import TuneResult
from evenstep.tools.tune.search import search
from evenstep.tools.tune.window import MeasuredSteps

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
