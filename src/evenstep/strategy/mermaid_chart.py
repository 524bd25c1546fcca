"""A plan as a Mermaid flow chart: sources, the step's draw, micro-batches by bucket, ranks.

Large plans are drawn in part; the chart counts what it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evenstep.errors import ConfigurationError
from evenstep.strategy.lineage import flows
from evenstep.strategy.loading_plan import LoadingPlan


def mermaid(plan: LoadingPlan, *, most: int = 8) -> str:
    """The chart as text, for a page that renders Mermaid.

    Args:
        plan: a step's plan, with its subplans.
        most: sources drawn, and buckets drawn of each plan.

    Raises:
        ConfigurationError: `most` is below 1.
    """
    if most < 1:
        raise ConfigurationError(f"most={most} must be at least 1")
    return "\n".join(["flowchart LR", *_sources(plan, most), *_plan(plan, "p", None, most)]) + "\n"


def _sources(plan: LoadingPlan, most: int) -> Iterator[str]:
    drawn = f"{_count(len(plan), 'sample')}"
    if plan.carried_in:
        drawn += f"<br/>{plan.carried_in:,} of them carried here"
    yield f'  drawn(["step {plan.step}<br/>{drawn}"])'
    flow = flows(plan, "buffered", "drawn")
    for one in flow[:most]:
        name = _text(plan.samples.sources[one.begin])
        weight = plan.weights.get(plan.samples.sources[one.begin])
        line = "" if weight is None else f"<br/>weight {weight:.3g}"
        yield f'  s{one.begin}[("{name}{line}")] -->|{one.samples:,}| drawn'
    if len(flow) > most:
        rest = sum(one.samples for one in flow[most:])
        yield f'  rest[("{_count(len(flow) - most, "more source")}")] -->|{rest:,}| drawn'


def _plan(plan: LoadingPlan, prefix: str, name: str | None, most: int) -> Iterator[str]:
    title = _text("+".join(plan.modality))
    if name is not None:
        title = f"{_text(name)}: {title}"
    axis = _text(plan.axis)
    to = plan.assignment
    sizes = np.diff(to.offsets).reshape(to.buckets, to.micro_batches)
    delivery = plan.delivery
    shown = min(most, to.buckets)
    for bucket in range(shown):
        group = f"{prefix}{bucket}"
        yield f'  subgraph {group}["{title}, {axis} {bucket}"]'
        for k in range(to.micro_batches):
            cost = plan.cost_after[bucket, k]
            yield (
                f'    {group}m{k}["micro-batch {k}<br/>{_count(int(sizes[bucket, k]), "sample")}'
                f'<br/>cost {cost:.4g}"]'
            )
        yield "  end"
        ranks = delivery.clients_of(bucket).tolist()
        named = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
        yield f"  drawn -->|{sizes[bucket].sum():,}| {group}"
        yield f'  {group} --> {group}r(["{named}"])'
    if shown < to.buckets:
        rest = int(sizes[shown:].sum())
        label = _count(to.buckets - shown, "more bucket")
        yield f'  drawn -->|{rest:,}| {prefix}rest["{title}, {label}"]'
    if name is None and len(plan.carried):
        yield f'  drawn -.->|{len(plan.carried):,}| carried(["carried to step {plan.step + 1}"])'
    for number, (sub, made) in enumerate(plan.subplans.items()):
        yield from _plan(made, f"{prefix}{'abcdefgh'[number % 8]}{number}_", sub, most)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _text(name: str) -> str:
    """Escapes the characters that end a label, after which a name could be any statement."""
    name = " ".join(name.split())
    return name.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;")
