"""The style sheet of pages, light and dark."""

from __future__ import annotations

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --soft: #5b6470; --rule: #dde1e6;
  --bar: #8fa3b8; --chosen: #0b7a5c; --baseline: #c08a3e; --mark: #b03060;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1e2329; --ink: #e7eaee; --soft: #9aa5b1; --rule: #313842;
    --bar: #5f7489; --chosen: #3cc79b; --baseline: #d9a35a; --mark: #f08cae;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 940px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
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
svg { display: block; width: 100%; min-width: 560px; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-family: inherit; }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .bar { fill: var(--bar); }
svg .bar.chosen { fill: var(--chosen); }
svg .bar.baseline { fill: var(--baseline); }
svg text.name, svg text.value { fill: var(--ink); font-size: 13px; }
svg text.chosen { font-weight: 600; }
svg .whisker { stroke: var(--ink); stroke-width: 1.5; fill: none; }
svg .line { stroke: var(--chosen); stroke-width: 2; fill: none; }
svg line.mark { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg text.mark { fill: var(--mark); paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
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
