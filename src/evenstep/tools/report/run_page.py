"""Step logs as one HTML page: where the time of a run went, or of two to compare.

The page is one file without fonts, images, scripts or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from evenstep.tools.report.run_record import LOSSES, RunRecord
from evenstep.version import __version__

_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem; font: 16px/1.5 system-ui; }
p, footer { font-size: .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .8rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.columns { display: flex; gap: 1px; height: 190px; }
.columns div { flex: 1; display: flex; flex-direction: column-reverse; }
.legend i { display: inline-block; width: .8em; height: .8em; }
.work { background: #0b7a5c; } .padding { background: #c08a3e; }
.ranks { background: #5a67c4; } .data { background: #b03060; }
"""
_MOST = 60
"""Most columns of a chart; with more steps, each stands for several."""


def run_page(runs: Sequence[RunRecord]) -> str:
    """The page as text, to be written in UTF-8.

    Args:
        runs: one, or before and after.
    """
    title = escape(" and ".join(run.name for run in runs))
    body = [f"<h1>{title}</h1>", _figures(runs)]
    for run in runs:
        body.append(f"<h2>{escape(run.name) if len(runs) > 1 else 'Where the time went'}</h2>")
        body += [_legend(run), _chart(run) if len(run) else "<p>No step has ended yet.</p>"]
    body.append(
        "<p>Each column shows the shares of one or more steps, the first ones on the left. Waits "
        "for data are measured on the rank that writes the log. Waits for ranks and padding are "
        "shares of the time between steps, predicted from costs and tokens: a step takes as long "
        "as its costliest rank. The first step of each pass is left out.</p>"
        f"<footer>evenstep {__version__}</footer>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _figures(runs: Sequence[RunRecord]) -> str:
    found = [run.figures for run in runs]
    names = dict.fromkeys(name for figures in found for name in figures)
    rows = [[name, *(figures.get(name, "") for figures in found)] for name in names]
    top = "".join(f"<th>{escape(name)}</th>" for name in ("", *(run.name for run in runs)))
    lines = (f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{''.join(lines)}</table>"


def _legend(run: RunRecord) -> str:
    items = (
        f'<i class="{name}"></i> {LOSSES[name]} {share:.1%}' for name, share in run.shares.items()
    )
    return f'<p class="legend">{" &emsp; ".join(items)}</p>'


def _chart(run: RunRecord) -> str:
    groups = np.array_split(np.arange(len(run)), min(len(run), _MOST))
    losses = np.stack(list(run.losses.values()), axis=1)  # [steps, losses]
    seconds = np.stack([losses[group].sum(axis=0) for group in groups])
    shares = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-12)
    columns = []
    for group, heights in zip(groups, shares.tolist()):
        steps = f"steps {group[0] + 1:,} to {group[-1] + 1:,}"
        pieces = (
            f'<i class="{name}" style="height:{height:.2%}" '
            f'title="{steps}: {height:.1%} {LOSSES[name]}"></i>'
            for name, height in zip(run.losses, heights)
            if height > 0
        )
        columns.append(f"<div>{''.join(pieces)}</div>")
    return f'<div class="columns">{"".join(columns)}</div>'
