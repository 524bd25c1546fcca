"""What a central planner decides for each step: from metadata of samples to a `LoadingPlan`. Pure.

The path of a step, in reading order:

    graph               `DGraph`: builds a strategy from primitives; read it first
    draws               asks the mixture for the samples of the step: see `evenstep.mixture`
    plan_builder        places the samples: spec -> assignment -> plan
    mesh/               `ClientPlaceTree`: into how many buckets, and which rank fetches which
    sample_costs        the cost of each sample
    balance/            balances buckets and micro-batches by cost
    assignment          the bucket, micro-batch and index of each sample
    loading_plan        `LoadingPlan`: the result

Around it:

    loaders/            how many Source Loaders a job needs, and which has what
    paper_strategies    `llm_balance`, `vlm_balance`, `image_balance`: OVERLORD's Algorithms 1 and 2
    raw_plans           the layer below: plans from outside, the share of each loader or constructor
    loading_plan_json, lineage    a plan as text, and sample by sample

Primitives and functions have the names of the OVERLORD paper; `mix` is `sample` in its first
version.
"""

from evenstep.mixture.sample_table import (
    BufferedMetadata,
    BulkMetadata,
    Metadata,
    SampleId,
    SampleTable,
)
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.methods import METHODS
from evenstep.strategy.draws import Draws, Mixes
from evenstep.strategy.graph import DGraph
from evenstep.strategy.lineage import STATES, Edge, Node, rows_of, trace
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.loading_plan_json import from_json, to_json
from evenstep.strategy.paper_strategies import image_balance, llm_balance, vlm_balance
from evenstep.strategy.raw_plans import (
    BufferSummary,
    ConstructorTask,
    LoaderTask,
    constructor_do_plan,
    loader_do_plan,
    plan_raw,
    summary_buffer,
)

__all__ = [
    "METHODS",
    "STATES",
    "Assignment",
    "BufferSummary",
    "BufferedMetadata",
    "BulkMetadata",
    "ConstructorTask",
    "DGraph",
    "Draws",
    "Edge",
    "LoaderTask",
    "LoadingPlan",
    "Metadata",
    "Mixes",
    "Node",
    "SampleId",
    "SampleTable",
    "constructor_do_plan",
    "from_json",
    "image_balance",
    "llm_balance",
    "loader_do_plan",
    "plan_raw",
    "rows_of",
    "summary_buffer",
    "to_json",
    "trace",
    "vlm_balance",
]
