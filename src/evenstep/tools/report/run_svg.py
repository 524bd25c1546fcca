"""The time of a run as a drawing: what its seconds went to, from the first step to the last."""

from __future__ import annotations

from html import escape

import numpy as np

from evenstep.tools.report.run_record import RunRecord

NAMES = {
    "work": "work on tokens",
    "padding": "padding",
    "ranks": "waiting for ranks",
    "data": "waiting for data",
}
"""What seconds go to, in the order in which they are drawn."""

_BARS = 60
"""Most bars; each is as many steps."""
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 240, 48, 12, 206


def run_drawing(run: RunRecord) -> str:
    """SVG text. Colours are classes of `run_page`'s style sheet."""
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _BOTTOM - (_BOTTOM - _TOP) * share
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    groups = np.array_split(np.arange(len(run)), min(len(run), _BARS))
    losses, width = run.losses, (_WIDTH - _LEFT) / max(len(groups), 1)
    for number, steps in enumerate(groups):
        total = sum(float(seconds[steps].sum()) for seconds in losses.values())
        y = float(_BOTTOM)
        for name, words in NAMES.items():
            share = float(losses[name][steps].sum()) / total if total else 0.0
            height = (_BOTTOM - _TOP) * share
            y -= height
            if height:
                parts.append(
                    f'<rect class="{name}" x="{_LEFT + number * width:.2f}" y="{y:.2f}" '
                    f'width="{max(width - 1, 0.5):.2f}" height="{height:.2f}"><title>'
                    f"steps {steps[0] + 1:,} to {steps[-1] + 1:,}: {share:.1%} {words}"
                    "</title></rect>"
                )
    for at, anchor, text in ((_LEFT, "start", "first steps"), (_WIDTH, "end", "last steps")):
        parts.append(f'<text x="{at}" y="{_BOTTOM + 20}" text-anchor="{anchor}">{text}</text>')
    said = ", ".join(f"{share:.1%} {NAMES[name]}" for name, share in run.shares.items())
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(run.name)}: {said}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )
