"""How many Source Loaders a job needs, and which has what: from measured costs of its sources to a
layout of processes within limits of memory and time. In reading order:

    load_model       weights of the steps to come -> samples that a step draws of each source;
                     `SourceProfile`: what a sample of a source costs; `LoaderLimits`, `LoadModel`:
                     what a loader needs for some parts of sources
    loader_layout    `SourceStripe`: the part of a source that one loader owns; `LoaderLayout`: the
                     result; `owners_by_weight`: who owns what where no costs are measured
    loader_packing   `packed`: as few loaders, then as few workers, as can be found; `group_needs`:
                     loaders and workers at each step, while the job runs and its weights move
"""

from evenstep.strategy.loaders.load_model import (
    LoaderLimits,
    LoadModel,
    SourceProfile,
    draws_of,
    weights_ahead,
)
from evenstep.strategy.loaders.loader_layout import (
    STRIPE,
    LoaderLayout,
    PlannedLoader,
    SourceStripe,
    owners_by_weight,
)
from evenstep.strategy.loaders.loader_packing import (
    ScalingLimits,
    group_needs,
    groups_of_layout,
    packed,
)

__all__ = [
    "STRIPE",
    "LoadModel",
    "LoaderLayout",
    "LoaderLimits",
    "PlannedLoader",
    "ScalingLimits",
    "SourceProfile",
    "SourceStripe",
    "draws_of",
    "group_needs",
    "groups_of_layout",
    "owners_by_weight",
    "packed",
    "weights_ahead",
]
