"""A loading plan as one self-contained HTML page, without scripts, fonts or requests.

It shows the gain of balancing, which source feeds which bucket, and which client fetches what.
Large plans are shown in part, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from evenstep.strategy.lineage import flows
from evenstep.strategy.loading_plan import LoadingPlan, imbalance
from evenstep.tools.report.page_style import STYLE
from evenstep.tools.report.plan_svg import flow_drawing, loads_chart
from evenstep.version import __version__

_SOURCES, _BUCKETS = 10, 16
"""Drawn by name; the others are combined."""
_ROWS = 32
"""Most rows of a table."""
_STYLE = "svg .flow { stroke: var(--chosen); stroke-opacity: .35; fill: none; }\n"


def plan_page(plan: LoadingPlan) -> str:
    """The page as text, to be written in UTF-8."""
    title = f"Plan of step {plan.step:,}"
    mesh = ", ".join(f"{axis} {size:,}" for axis, size in plan.tree.sizes.items())
    lead = f"{len(plan):,} samples from {_drawn_sources(plan):,} sources"
    body = [
        f"<h1>{title}</h1>",
        f'<p class="lead">{lead} for {len(plan.tree):,} clients ({mesh}).</p>',
        *([_box("Notes", plan.notes)] if plan.notes else []),
        *_cost(plan, f"Cost: {_modality(plan)}"),
        "<h2>From sources to buckets</h2>",
        _flow(plan),
        _sources(plan),
        "<h2>Fetching clients</h2>",
        _delivery(plan),
    ]
    for name, subplan in plan.subplans.items():
        body += _cost(subplan, f"Subplan {escape(name)}: {_modality(subplan)}")
        body.append(_delivery(subplan))
    body.append(f"<footer>evenstep {__version__}</footer>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _modality(plan: LoadingPlan) -> str:
    return escape(" and ".join(plan.modality))


def _drawn_sources(plan: LoadingPlan) -> int:
    return int(np.count_nonzero(plan.samples.counts()))


def _cost(plan: LoadingPlan, title: str) -> list[str]:
    within = imbalance(plan.cost_after), imbalance(plan.cost_before)
    placed = plan.assignment.placed & (plan.tokens > 0)
    before_and_after = "{:.3f}<small>{:.3f} before</small>"
    tiles = {
        "samples placed": f"{np.count_nonzero(placed):,}",
        "tokens": f"{plan.tokens[placed].sum():,}",
        f"buckets at {plan.axis}": f"{plan.buckets:,}",
        "micro-batches of each": f"{plan.micro_batches:,}",
        "imbalance of buckets": before_and_after.format(plan.imbalance, plan.imbalance_before),
        "of micro-batches": before_and_after.format(*within),
        "carried to the next step": f"{len(plan.carried):,}",
    }
    if title.startswith("Subplan"):
        del tiles["carried to the next step"]
    how = [f"{level}-micro-batch: {name}" for level, name in plan.methods.items()] or ["as drawn"]
    if plan.group_size is not None:
        how.append(f"in groups of {plan.group_size:,} buckets")
    if plan.max_tokens is not None:
        how.append(f"at most {plan.max_tokens:,} tokens in a micro-batch")
    before, after = (np.asarray(c, np.float64) for c in (plan.cost_before, plan.cost_after))
    caption = (
        f"Cost of each bucket, stacked by micro-batch ({escape('; '.join(how))}). The dashed line "
        "is the mean; imbalance is the costliest bucket over it, 1 being perfect."
    )
    return [
        f"<h2>{title}</h2>",
        f'<div class="tiles">{"".join(_tile(*tile) for tile in tiles.items())}</div>',
        _figure(loads_chart(before, after), caption),
    ]


def _flow(plan: LoadingPlan) -> str:
    width = len(plan.samples.sources)
    tokens = np.zeros((width, plan.buckets), np.int64)
    for one in flows(plan, "buffered", "assigned"):
        tokens[one.begin, one.end] += one.tokens
    largest = tokens.sum(axis=1).argsort(kind="stable")[::-1]
    largest = largest[tokens.sum(axis=1)[largest] > 0]
    named = np.sort(largest[:_SOURCES])
    rest = largest[_SOURCES:]
    rows = [tokens[named], tokens[rest].sum(axis=0, keepdims=True)][: 1 + bool(len(rest))]
    sources = [plan.samples.sources[number] for number in named.tolist()]
    if len(rest):
        sources.append(f"{len(rest):,} other sources")
    table: npt.NDArray[np.int64] = np.concatenate(rows)
    buckets = [f"{plan.axis} {bucket}" for bucket in range(min(plan.buckets, _BUCKETS))]
    if plan.buckets > _BUCKETS:
        more = table[:, _BUCKETS:].sum(axis=1, keepdims=True)
        table = np.concatenate([table[:, :_BUCKETS], more], axis=1)
        buckets.append(f"{plan.buckets - _BUCKETS:,} more buckets")
    drawing = flow_drawing(sources, buckets, table)
    return _figure(drawing, "The width of a band is its number of tokens.")


def _sources(plan: LoadingPlan) -> str:
    counts, total = plan.samples.counts(), max(int(plan.tokens.sum()), 1)
    placed = plan.assignment.placed
    carried = plan.samples[~placed].counts()
    tokens = np.zeros(len(counts), np.int64)
    np.add.at(tokens, plan.samples.source, plan.tokens)
    order = [n for n in (-counts).argsort(kind="stable").tolist() if counts[n]]
    rows = []
    for n in order[:_ROWS]:
        name = plan.samples.sources[n]
        weight = plan.weights.get(name)
        rows.append(
            (
                escape(name),
                "" if weight is None else f"{weight:.4g}",
                f"{counts[n]:,}",
                f"{tokens[n]:,}",
                f"{tokens[n] / total:.1%}",
                f"{carried[n]:,}",
            )
        )
    head = ("source", "weight", "samples", "tokens", "share of tokens", "carried over")
    return _table(head, rows, len(order), "sources")


def _delivery(plan: LoadingPlan) -> str:
    delivery = plan.delivery
    sizes = np.diff(plan.assignment.offsets).reshape(plan.buckets, plan.micro_batches)
    rows = []
    for bucket in range(min(plan.buckets, _ROWS)):
        ranks = ", ".join(map(str, delivery.clients_of(bucket).tolist()))
        costs = ", ".join(f"{cost:.4g}" for cost in plan.cost_after[bucket, :8].tolist())
        costs += ", …" if plan.micro_batches > 8 else ""
        rows.append((str(bucket), f"{sizes[bucket].sum():,}", costs, ranks))
    head = (f"bucket at {plan.axis}", "samples", "cost of micro-batches", "fetched by ranks")
    at = f" The trainer broadcasts at {', '.join(plan.broadcast_at)}." if plan.broadcast_at else ""
    return (
        f"<p>{len(delivery.fetching):,} of {len(delivery.ranks):,} clients fetch.{at}</p>"
        + _table(head, rows, plan.buckets, "buckets")
    )


def _table(head: Iterable[str], rows: Sequence[tuple[str, ...]], count: int, what: str) -> str:
    top = "".join(f"<th>{name}</th>" for name in head)
    cells = "".join(f"<tr>{''.join(f'<td>{c}</td>' for c in row)}</tr>" for row in rows)
    left = f'<p class="caption">And {count - len(rows):,} more {what}.</p>'
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{cells}</tbody></table>'
        f"</div>{left if count > len(rows) else ''}"
    )


def _figure(drawing: str, caption: str) -> str:
    return f'<figure><div class="wide">{drawing}</div><figcaption>{caption}</figcaption></figure>'


def _tile(name: str, value: str) -> str:
    return f'<div class="tile"><span>{escape(name)}</span><b>{value}</b></div>'


def _box(title: str, texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<section class="box"><h2>{title}</h2><ul>{items}</ul></section>'
