"""Strategies: which samples go where in a step, said in a few primitives. Metadata only; pure.

`DGraph` and its primitives end in a `LoadingPlan`; `llm_balance` and `vlm_balance` are strategies
made of them. `plan_raw`, `loader_do_plan`, `constructor_do_plan` and `summary_buffer` are below
them. Names are those of OVERLORD's first text, with `mix`, as later ones have it, for `sample`.
"""

from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.methods import METHODS
from evenstep.strategy.draws import Draws, Mixes, WeightedDraws
from evenstep.strategy.graph import DGraph
from evenstep.strategy.lineage import STATES, Edge, Flow, Node, flows, groups_of, rows_of, trace
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.loading_plan_json import from_json, to_json
from evenstep.strategy.mermaid_chart import mermaid
from evenstep.strategy.paper_strategies import llm_balance, vlm_balance
from evenstep.strategy.raw_plans import (
    BufferSummary,
    ConstructorWork,
    LoaderWork,
    constructor_do_plan,
    loader_do_plan,
    plan_raw,
    summary_buffer,
)
from evenstep.strategy.sample_table import (
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
