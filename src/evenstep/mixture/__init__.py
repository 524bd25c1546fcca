"""Which samples of which sources a step draws: a function of seed, step, weights and past draws.

Where do mixing weights come from? From a schedule: `Mixer(sources, schedule)` asks it for the
weights of each step. In a job of the service that is what the strategy passes to `DGraph.mix`, else
`DrawOptions.schedule`, else the constant weights `Source.weight`. In reading order:

    schedules      weights by step: constant, staged, warm-up, a function, or from trainers'
                   reports; add one here
    mixture_options  all arguments of a mixture, checked; what happens when a source ends;
                   `LengthCurriculum`: the longest sample of each step
    mixer          `Mixer`: applies the weights: draws one step after the other, and resumes; read
                   it first

One draw, from weights to samples:

    sample_table   metadata of samples in columns; never payload
    token_shares   weights -> shares of draws that give the right shares of tokens
    pattern        shares -> the source of each draw, with random numbers of Philox
    source_queues  the next samples of each source, and which of them wait
    step_draws     pattern and queues -> the draws of the step
    state          what is carried to the next step, and its saved form
"""

from evenstep.mixture.mixer import Mixer
from evenstep.mixture.mixture_options import LengthCurriculum
from evenstep.mixture.schedules import (
    Constant,
    FeedbackSchedule,
    Past,
    PerStep,
    Schedule,
    Staged,
    WarmUp,
)

__all__ = [
    "Constant",
    "FeedbackSchedule",
    "LengthCurriculum",
    "Mixer",
    "Past",
    "PerStep",
    "Schedule",
    "Staged",
    "WarmUp",
]
