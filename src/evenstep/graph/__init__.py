"""Strategies: which samples go where in a step, said in a few primitives. Metadata only; pure.

`DGraph` and its primitives end in a `LoadingPlan`; `llm_balance` and `vlm_balance` are strategies
made of them. `plan_raw`, `loader_do_plan`, `constructor_do_plan` and `summary_buffer` are below
them. Names are those of OVERLORD's first text, with `mix`, as later ones have it, for `sample`.
"""

from evenstep.graph.assignment import Assignment
from evenstep.graph.drawing import mermaid
from evenstep.graph.graph import DGraph
from evenstep.graph.lineage import STATES, Edge, Flow, Node, flows, groups_of, rows_of, trace
from evenstep.graph.low_level import (
    BufferSummary,
    ConstructorWork,
    LoaderWork,
    constructor_do_plan,
    loader_do_plan,
    plan_raw,
    summary_buffer,
)
from evenstep.graph.methods import METHODS
from evenstep.graph.mixing_protocol import Draws, Mixes, WeightedDraws
from evenstep.graph.plan import LoadingPlan
from evenstep.graph.plan_json import from_json, to_json
from evenstep.graph.strategies import llm_balance, vlm_balance
from evenstep.plan.samples import (
    BufferedMetadata,
    BulkMetadata,
    Metadata,
    SampleId,
    SampleTable,
)

__all__ = [
    "METHODS",
    "STATES",
    "Assignment",
    "BufferSummary",
    "BufferedMetadata",
    "BulkMetadata",
    "ConstructorWork",
    "DGraph",
    "Draws",
    "Edge",
    "Flow",
    "LoaderWork",
    "LoadingPlan",
    "Metadata",
    "Mixes",
    "Node",
    "SampleId",
    "SampleTable",
    "WeightedDraws",
    "constructor_do_plan",
    "flows",
    "from_json",
    "groups_of",
    "llm_balance",
    "loader_do_plan",
    "mermaid",
    "plan_raw",
    "rows_of",
    "summary_buffer",
    "to_json",
    "trace",
    "vlm_balance",
]
