"""What a central planner decides for each step: from metadata of samples to a `LoadingPlan`. Pure.

The path of a step, in reading order:

    graph               `DGraph`: builds a strategy from primitives; read it first. It draws the
                        samples of the step from a mixture: see `evenstep.mixture`
    plan_builder        places the samples: spec -> assignment -> plan
    mesh                `ClientPlaceTree`: into how many buckets, and which rank fetches which
    balance/            balances buckets and micro-batches by cost
    assignment          the bucket, micro-batch and index of each sample
    loading_plan        `LoadingPlan`: the result

Around it:

    loaders/            how many Source Loaders a job needs, and which has what
    loading_plan_json   a plan as JSON

Primitives have the names of the OVERLORD paper; `sample` of its first version is `mix` here.
"""

from evenstep.mixture.sample_table import BufferedMetadata, BulkMetadata, Metadata, SampleTable
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.methods import METHODS
from evenstep.strategy.graph import DGraph
from evenstep.strategy.loading_plan import LoaderTask, LoadingPlan
from evenstep.strategy.loading_plan_json import to_json

__all__ = [
    "METHODS",
    "Assignment",
    "BufferedMetadata",
    "BulkMetadata",
    "DGraph",
    "LoaderTask",
    "LoadingPlan",
    "Metadata",
    "SampleTable",
    "to_json",
]
