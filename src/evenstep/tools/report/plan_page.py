"""A loading plan as one self-contained HTML page.

It shows what balancing gains, which source feeds which bucket, and which client fetches what.
Large plans are shown in part, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.strategy.loading_plan import LoadingPlan, imbalance
from evenstep.tools.report.page import bullets, columns, page, table, tiles, wide

_SOURCES, _BUCKETS = 10, 16
"""Most sources and buckets in the table of flows; the others are added up."""
_ROWS = 32
"""Most rows of other tables."""
_COLUMNS = 64
"""Most columns of a chart. With more buckets, each shows the costliest of several."""


def plan_page(plan: LoadingPlan) -> str:
    """The page as text, to be written in UTF-8."""
    mesh = ", ".join(f"{axis} {size:,}" for axis, size in plan.tree.sizes.items())
    sources = int(np.count_nonzero(plan.samples.counts()))
    lead = (
        f"{len(plan):,} samples from {sources:,} sources for {len(plan.tree):,} clients ({mesh})."
    )
    body = [f'<p class="lead">{escape(lead)}</p>']
    if plan.notes:
        body.append(f'<section class="box"><h2>Notes</h2>{bullets(plan.notes)}</section>')
    carried = {"carried to the next step": f"{len(plan.carried):,}"}
    body += [
        *_cost(plan, "Cost", carried),
        "<h2>From sources to buckets</h2>",
        _flow(plan),
        _sources(plan),
        "<h2>Fetching clients</h2>",
        _delivery(plan),
    ]
    for name, subplan in plan.subplans.items():
        body += [*_cost(subplan, f"Subplan {name}", {}), _delivery(subplan)]
    return page(f"Plan of step {plan.step:,}", body)


def _cost(plan: LoadingPlan, name: str, more: dict[str, str]) -> list[str]:
    placed = plan.assignment.placed & (plan.tokens > 0)
    before, after = (np.asarray(c, np.float64) for c in (plan.cost_before, plan.cost_after))
    figures = {
        "samples placed": f"{np.count_nonzero(placed):,}",
        "tokens": f"{plan.tokens[placed].sum():,}",
        f"buckets at {escape(plan.axis)}": f"{plan.buckets:,}",
        "micro-batches of each": f"{plan.micro_batches:,}",
        "imbalance of buckets": f"{plan.imbalance:.3f}"
        f"<small>{plan.imbalance_before:.3f} before</small>",
        "of micro-batches": f"{imbalance(plan.cost_after):.3f}"
        f"<small>{imbalance(plan.cost_before):.3f} before</small>",
        **more,
    }
    how = [f"{level}-micro-batch: {method}" for level, method in plan.methods.items()]
    how = how or ["as drawn"]
    if plan.max_tokens is not None:
        how.append(f"at most {plan.max_tokens:,} tokens in a micro-batch")
    tallest = max(float(each.sum(axis=1).max()) for each in (before, after)) or 1.0
    caption = (
        f"Cost of each bucket, stacked by micro-batch: above as samples arrive, below as planned "
        f"({escape('; '.join(how))}). The dashed line is the mean; imbalance is the costliest "
        "bucket over it, 1 being perfect."
    )
    charts = _loads(before, tallest, "baseline") + _loads(after, tallest, "")
    return [
        f"<h2>{escape(name)}: {escape(' and '.join(plan.modality))}</h2>",
        tiles(figures),
        wide("Cost of buckets", charts, caption),
    ]


def _loads(loads: Float64Array, tallest: float, style: str) -> str:
    """A chart of [buckets, micro-batches] costs."""
    runs = np.array_split(np.arange(len(loads)), min(len(loads), _COLUMNS))
    shown = [int(run[loads[run].sum(axis=1).argmax()]) for run in runs]

    def title(column: int, part: int) -> str:
        run, bucket = runs[column], shown[column]
        others = f", the costliest of {run[0]} to {run[-1]}" if len(run) > 1 else ""
        return f"bucket {bucket}{others}, micro-batch {part}: {loads[bucket, part]:.4g}"

    mean = float(loads.sum()) / len(loads) / tallest
    return columns(loads[shown] / tallest, title, classes=lambda column, part: style, line=mean)


def _flow(plan: LoadingPlan) -> str:
    """A table of tokens from sources to buckets, shaded by their number."""
    tokens = np.zeros((len(plan.samples.sources), plan.buckets), np.int64)
    placed, to = plan.assignment.placed, plan.assignment.bucket
    np.add.at(tokens, (plan.samples.source[placed], to[placed]), plan.tokens[placed])
    drawn = [row for row in (-tokens.sum(axis=1)).argsort(kind="stable") if tokens[row].any()]
    named, rest = sorted(drawn[:_SOURCES]), drawn[_SOURCES:]
    sources = [escape(plan.samples.sources[row]) for row in named]
    shown = tokens[named]
    if rest:
        sources.append(f"{len(rest):,} other sources")
        shown = np.vstack([shown, tokens[rest].sum(axis=0)])
    buckets = [f"{escape(plan.axis)} {bucket}" for bucket in range(min(plan.buckets, _BUCKETS))]
    if plan.buckets > _BUCKETS:
        buckets.append(f"{plan.buckets - _BUCKETS:,} more buckets")
        shown = np.column_stack([shown[:, :_BUCKETS], shown[:, _BUCKETS:].sum(axis=1)])
    most = max(int(shown.max(initial=0)), 1)
    rows = [
        [source, *(_shaded(count, count / most) for count in row)]
        for source, row in zip(sources, shown.tolist())
    ]
    return wide("Tokens from sources to buckets", table(["tokens", *buckets], rows))


def _shaded(count: int, share: float) -> str:
    colour = f"color-mix(in srgb, var(--chosen) {70 * share:.0f}%, transparent)"
    return f'<span style="background:{colour}">{count:,}</span>'


def _sources(plan: LoadingPlan) -> str:
    counts, total = plan.samples.counts(), max(int(plan.tokens.sum()), 1)
    carried = plan.samples[~plan.assignment.placed].counts()
    tokens: Int64Array = np.zeros(len(counts), np.int64)
    np.add.at(tokens, plan.samples.source, plan.tokens)
    order = [n for n in (-counts).argsort(kind="stable").tolist() if counts[n]]
    rows = []
    for n in order[:_ROWS]:
        name = plan.samples.sources[n]
        weight = plan.weights.get(name)
        rows.append(
            [
                escape(name),
                "" if weight is None else f"{weight:.4g}",
                f"{counts[n]:,}",
                f"{tokens[n]:,}",
                f"{tokens[n] / total:.1%}",
                f"{carried[n]:,}",
            ]
        )
    header = ["source", "weight", "samples", "tokens", "share of tokens", "carried over"]
    return _part(header, rows, len(order), "sources")


def _delivery(plan: LoadingPlan) -> str:
    delivery = plan.delivery
    sizes = np.diff(plan.assignment.offsets).reshape(plan.buckets, plan.micro_batches)
    rows = []
    for bucket in range(min(plan.buckets, _ROWS)):
        ranks = ", ".join(map(str, delivery.clients_of(bucket).tolist()))
        costs = ", ".join(f"{cost:.4g}" for cost in plan.cost_after[bucket, :8].tolist())
        costs += ", …" if plan.micro_batches > 8 else ""
        rows.append([str(bucket), f"{sizes[bucket].sum():,}", costs, ranks])
    header = [f"bucket at {escape(plan.axis)}", "samples"]
    header += ["cost of micro-batches", "fetched by ranks"]
    at = escape(", ".join(plan.broadcast_at))
    broadcast = f" The trainer broadcasts at {at}." if at else ""
    return (
        f"<p>{len(delivery.fetching):,} of {len(delivery.ranks):,} clients fetch.{broadcast}</p>"
        + _part(header, rows, plan.buckets, "buckets")
    )


def _part(header: Iterable[str], rows: Sequence[Sequence[str]], count: int, what: str) -> str:
    """A table of some of `count` rows."""
    more = f"And {count - len(rows):,} more {what}." if count > len(rows) else ""
    return wide(what.capitalize(), table(header, rows), more)
