"""The frame and the parts of an HTML page: one file without fonts, images or requests.

A page follows the reader's choice of light or dark colours. Cells and captions are HTML, so
callers must escape text from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from evenstep.version import __version__

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --soft: #5b6470; --rule: #dde1e6;
  --bar: #8fa3b8; --chosen: #0b7a5c; --baseline: #c08a3e; --ranks: #5a67c4; --mark: #b03060;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1e2329; --ink: #e7eaee; --soft: #9aa5b1; --rule: #313842;
    --bar: #5f7489; --chosen: #3cc79b; --baseline: #d9a35a; --ranks: #98a4f5; --mark: #f08cae;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
.lead, .caption, figcaption, footer { color: var(--soft); }
.caption, figcaption, footer { font-size: .9rem; }
.box { background: var(--card); border-left: 4px solid var(--chosen); border-radius: 6px;
  padding: 1rem 1.25rem; margin-top: 1.5rem; }
.box h2 { margin-top: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); gap: .6rem;
  margin: .8rem 0; }
.tile { border: 1px solid var(--rule); border-radius: 6px; padding: .5rem .7rem; }
.tile span { display: block; color: var(--soft); font-size: .8rem; }
.tile b { font-size: 1.15rem; font-variant-numeric: tabular-nums; }
small { display: block; color: var(--soft); font-size: .75rem; font-weight: normal;
  white-space: nowrap; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; }
pre { background: var(--paper); border: 1px solid var(--rule); border-radius: 6px;
  padding: .8rem 1rem; overflow-x: auto; }
ul { padding-left: 1.2rem; }
li { margin: .25rem 0; }
figure { margin: 1rem 0 1.5rem; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--chosen); outline-offset: 2px; }
.columns { position: relative; display: flex; gap: 1px; height: 190px; min-width: 560px;
  margin-top: 1rem; border-bottom: 1px solid var(--rule); }
.columns div { flex: 1; display: flex; flex-direction: column-reverse; }
.columns i { border-top: 1px solid var(--paper); background: var(--bar); }
.columns hr { position: absolute; left: 0; right: 0; margin: 0; border: 0;
  border-top: 2px dashed var(--mark); }
.ends { display: flex; justify-content: space-between; min-width: 560px; color: var(--soft);
  font-size: .8rem; }
.bar { display: block; height: .5rem; border-radius: 2px; background: var(--bar); }
tr.chosen .bar { background: var(--chosen); }
tr.baseline .bar, .columns .baseline { background: var(--baseline); }
.columns .marked { background: var(--mark); }
table { border-collapse: collapse; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .55rem; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: nowrap; }
tr.chosen td { background: color-mix(in srgb, var(--chosen) 12%, transparent); }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: .8rem; }
"""


def page(title: str, body: Iterable[str], *, style: str = "") -> str:
    """A page as text, to be written in UTF-8.

    Args:
        title: text.
        body: HTML, below the title as a heading.
        style: more rules of the style sheet.
    """
    parts = "\n".join([f"<h1>{escape(title)}</h1>", *body])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{parts}\n<footer>evenstep {__version__}</footer>\n</main>\n"
        "</body>\n</html>\n"
    )


def tiles(values: Mapping[str, str]) -> str:
    """A row of tiles: the name of each above its value, both HTML."""
    cells = (
        f'<div class="tile"><span>{name}</span><b>{value}</b></div>'
        for name, value in values.items()
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def bullets(texts: Iterable[str]) -> str:
    """A list of texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def table(
    header: Iterable[str], rows: Iterable[Sequence[str]], classes: Iterable[str] | None = None
) -> str:
    """A table of HTML cells.

    Args:
        classes: of each row, in the style sheet.
    """
    rows = list(rows)
    top = "".join(f"<th>{name}</th>" for name in header)
    lines = (
        f'<tr class="{kind}">{"".join(f"<td>{cell}</td>" for cell in row)}</tr>'
        for kind, row in zip(classes or [""] * len(rows), rows)
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def columns(
    parts: npt.NDArray[np.float64],
    title: Callable[[int, int], str],
    *,
    classes: Callable[[int, int], str] = lambda column, part: "",
    line: float | None = None,
    ends: Iterable[str] = (),
) -> str:
    """A chart of stacked columns.

    Args:
        parts: [columns, parts] heights, lowest part first; 1 is the height of the chart.
        title: from (column, part) to the text under the pointer.
        classes: from (column, part) to the class in the style sheet.
        line: height of a dashed line.
        ends: texts below the chart, from the left to the right.
    """
    drawn = []
    for column, heights in enumerate(parts.tolist()):
        pieces = (
            f'<i class="{classes(column, part)}" style="height:{height:.2%}" '
            f'title="{escape(title(column, part))}"></i>'
            for part, height in enumerate(heights)
            if height > 0
        )
        drawn.append(f"<div>{''.join(pieces)}</div>")
    if line is not None:
        drawn.append(f'<hr style="bottom:{line:.2%}">')
    below = "".join(f"<span>{text}</span>" for text in ends)
    return f'<div class="columns">{"".join(drawn)}</div><div class="ends">{below}</div>'


def wide(name: str, content: str, caption: str = "") -> str:
    """A figure or table that may be wider than the page, and scrolls, by the keyboard too."""
    inner = f'<div class="wide" tabindex="0" role="region" aria-label="{name}">{content}</div>'
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{inner}{below}</figure>"
