"""Step logs as one self-contained HTML page: where the time of a run went, or of two to compare."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from evenstep.tools.report.page import columns, page, table, wide
from evenstep.tools.report.run_record import LOSSES, RunRecord

_STYLE = """
.columns .work, .legend .work { background: var(--chosen); }
.columns .padding, .legend .padding { background: var(--baseline); }
.columns .ranks, .legend .ranks { background: var(--ranks); }
.columns .data, .legend .data { background: var(--mark); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; }
.wide td:first-child { white-space: normal; }
"""
_MOST = 60
"""Most columns of a chart; with more steps, each stands for several."""


def run_page(runs: Sequence[RunRecord]) -> str:
    """The page as text, to be written in UTF-8.

    Args:
        runs: one, or before and after.
    """
    body = [wide("Figures", _figures(runs))]
    for run in runs:
        body.append(f"<h2>{escape(run.name) if len(runs) > 1 else 'Where the time went'}</h2>")
        chart = _chart(run) if len(run) else "<p>No step has ended yet.</p>"
        body.append(_legend(run))
        body.append(wide(f"Time of {escape(run.name)}", chart))
    body.append(
        '<p class="caption">Each column shows the shares of one or more steps. Waits for data are '
        "measured on the rank that writes the log. Waits for ranks and padding are shares of the "
        "time between steps, predicted from costs and tokens: a step takes as long as its "
        "costliest rank. The first step of each pass is left out.</p>"
    )
    title = " and ".join(run.name for run in runs)
    return page(title, body, style=_STYLE)


def _figures(runs: Sequence[RunRecord]) -> str:
    found = [run.figures for run in runs]
    names = dict.fromkeys(name for figures in found for name in figures)
    rows = [[name, *(figures.get(name, "") for figures in found)] for name in names]
    return table(["", *(escape(run.name) for run in runs)], rows)


def _legend(run: RunRecord) -> str:
    items = (
        f'<li><i class="{name}"></i>{LOSSES[name]} {share:.1%}</li>'
        for name, share in run.shares.items()
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _chart(run: RunRecord) -> str:
    groups = np.array_split(np.arange(len(run)), min(len(run), _MOST))
    losses = np.stack(list(run.losses.values()), axis=1)  # [steps, losses]
    seconds = np.stack([losses[group].sum(axis=0) for group in groups])
    shares = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-12)
    names = list(run.losses)

    def title(column: int, part: int) -> str:
        first, last = groups[column][[0, -1]] + 1
        return f"steps {first:,} to {last:,}: {shares[column, part]:.1%} {LOSSES[names[part]]}"

    return columns(
        shares,
        title,
        classes=lambda column, part: names[part],
        ends=("first steps", "last steps"),
    )
