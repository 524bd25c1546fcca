"""States that samples pass through, and the edges between them (OVERLORD, section 4.1).

A node is a sample in a state: *buffered* by the loader of its source, *drawn* for a step,
*assigned* to the bucket that a constructor makes, *grouped* with others into a micro-batch,
*delivered* to the clients that fetch the bucket. An edge is a transformation of the sample, a
grouping of several, or only a change of state.

Nodes are not stored: they are rows of a plan's columns, which all functions here read. So a logged
plan gives the lineage of any of its samples, named by (source, shard, index).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import SampleId
from evenstep.strategy.loading_plan import LoadingPlan

STATES = ("buffered", "drawn", "assigned", "grouped", "delivered")

# The kind of the edge that leads to a state.
_KINDS = {
    "drawn": "transformation",  # the loader prepares the sample
    "assigned": None,
    "grouped": "grouping",
    "delivered": "transformation",  # the constructor pads or packs, and shards
}


@dataclass(frozen=True)
class Node:
    """A sample in a state."""

    sample: SampleId
    state: str
    where: str
    """The buffer, bucket or micro-batch, in words."""


@dataclass(frozen=True)
class Edge:
    """A step from one state of a sample to the next."""

    before: Node
    after: Node
    kind: str | None
    """"transformation", "grouping", or None where only the state is new."""


def rows_of(plan: LoadingPlan, sample: SampleId) -> Int64Array:
    """Rows of a sample in a plan: one, or more where a source is read twice within a step.

    Raises:
        ConfigurationError: the plan does not have it.
    """
    samples = plan.samples
    if sample.source in samples.sources:
        number = samples.sources.index(sample.source)
        found = (samples.source == number) & (samples.shard == sample.shard)
        rows = np.flatnonzero(found & (samples.index == sample.index))
        if len(rows):
            return rows
    raise ConfigurationError(
        f"sample {sample} is not in the plan of step {plan.step}, which has {len(plan):,} samples "
        f"of {len(samples.sources)} sources"
    )


def trace(plan: LoadingPlan, row: int) -> tuple[Edge, ...]:
    """The path of one sample through the step; a carried sample ends in state "drawn".

    Raises:
        ConfigurationError: no such row.
    """
    if not 0 <= row < len(plan):
        raise ConfigurationError(f"row {row} must be from 0 to {len(plan) - 1}")
    nodes = list(_nodes(plan, row))
    return tuple(Edge(a, b, _KINDS[b.state]) for a, b in pairwise(nodes))


def _nodes(plan: LoadingPlan, row: int) -> Iterator[Node]:
    sample, to = plan.samples.identity(row), plan.assignment
    yield Node(sample, "buffered", f"position {plan.samples.position[row]} of {sample.source}")
    late = ", carried from the step before" if row < plan.carried_in else ""
    yield Node(sample, "drawn", f"sample {row} of step {plan.step}{late}")
    if not to.placed[row]:
        return
    bucket = int(to.bucket[row])
    yield Node(sample, "assigned", f"{plan.axis} bucket {bucket}")
    yield Node(sample, "grouped", f"micro-batch {to.micro_batch[row]}, index {to.order[row]}")
    ranks = ", ".join(map(str, plan.clients_of(bucket, int(to.micro_batch[row]))))
    yield Node(sample, "delivered", f"rank{'s' if ',' in ranks else ''} {ranks}")
