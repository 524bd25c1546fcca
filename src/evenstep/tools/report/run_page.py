"""Step logs as one self-contained HTML page, without fonts or requests to others.

One log: what the run lost to padding, to waiting for ranks and for data, over time. Two: before and
after. A page that renews itself has a script, which asks its own server for it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from evenstep.tools.report.page_style import STYLE
from evenstep.tools.report.run_figures import run_figures
from evenstep.tools.report.run_record import RunRecord
from evenstep.tools.report.run_svg import NAMES, run_drawing
from evenstep.version import __version__

_STYLE = """
:root { --work: #0b7a5c; --padding: #c08a3e; --ranks: #5a67c4; --data: #b03060; }
@media (prefers-color-scheme: dark) {
  :root { --work: #3cc79b; --padding: #d9a35a; --ranks: #98a4f5; --data: #f08cae; }
}
svg .work { fill: var(--work); } svg .padding { fill: var(--padding); }
svg .ranks { fill: var(--ranks); } svg .data { fill: var(--data); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; list-style: none; padding: 0; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; }
.wide td:first-child { white-space: normal; }
.wide:focus-visible { outline: 2px solid var(--chosen); outline-offset: 2px; }
"""
_RENEW = """
const renew = async () => {
  const said = document.getElementById("renewed");
  try {
    const answer = await fetch(location.href, {cache: "no-store"});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const now of page.querySelectorAll("[data-renewed]")) {
      const old = document.getElementById(now.id);
      if (old && old.innerHTML !== now.innerHTML) old.innerHTML = now.innerHTML;
    }
    said.textContent = "";
  } catch {
    said.textContent = "The server has ended; the page stays as it is.";
  }
};
setInterval(renew, 2000);
"""


def run_page(runs: Sequence[RunRecord], *, renews: bool = False) -> str:
    """The page as text, to be written in UTF-8.

    Args:
        runs: one, or before and after.
        renews: whether it asks for itself again every two seconds.
    """
    title = " and ".join(escape(run.name) for run in runs)
    body = [f"<h1>{title}</h1>", '<p class="lead" id="renewed" role="status"></p>' * renews]
    body.append(_wide("Figures", _renewed("figures", _table(runs))))
    for number, run in enumerate(runs):
        name = escape(run.name) if len(runs) > 1 else "Where the time went"
        body.append(f"<h2>{name}</h2>")
        drawing = run_drawing(run) if len(run) else "<p>No step has ended yet.</p>"
        body.append(_renewed(f"shares-{number}", _legend(run)))
        body.append(_wide(f"Time of {escape(run.name)}", _renewed(f"time-{number}", drawing)))
    body.append(
        '<p class="caption">Waits for data are measured on the rank that writes the log. Waits for '
        "ranks and padding are shares of the time between steps, by predicted costs and tokens: a "
        "step takes as long as its costliest rank. The first step of each pass is left out.</p>"
        f"<footer>evenstep {__version__}</footer>"
    )
    script = f"<script>{_RENEW}</script>\n" if renews else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + f"\n</main>\n{script}</body>\n</html>\n"
    )


def _renewed(name: str, content: str) -> str:
    return f'<div id="{name}" data-renewed>{content}</div>'


def _table(runs: Sequence[RunRecord]) -> str:
    head = "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    columns = [run_figures(run) for run in runs]
    names = {name: None for column in columns for name in column}
    cells = {name: [f"<td>{column.get(name, '')}</td>" for column in columns] for name in names}
    rows = "".join(f"<tr><td>{name}</td>{''.join(cells[name])}</tr>" for name in names)
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _legend(run: RunRecord) -> str:
    shares = run.shares
    items = "".join(
        f'<li><i style="background: var(--{name})"></i>{words} {shares[name]:.1%}</li>'
        for name, words in NAMES.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _wide(name: str, content: str) -> str:
    """What may be wider than the page: it scrolls, by the keyboard, too. It is not renewed itself,
    so that it keeps its place and the focus."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{name}">{content}</div>'
