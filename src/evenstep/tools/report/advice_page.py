"""Advice as one self-contained HTML page, without scripts, fonts or requests.

It follows the reader's choice of light or dark colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from evenstep.tools.advise.advice import Advice
from evenstep.tools.advise.figure_range import Range
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Prediction
from evenstep.tools.report.advice_text import (
    describe_sample,
    figure_cells,
    marked,
    marks_explained,
    setting_of,
)
from evenstep.tools.report.page_style import STYLE
from evenstep.tools.report.svg import Bar, bar_chart, lengths_chart
from evenstep.version import __version__


def advice_page(advice: Advice) -> str:
    """The page as text, to be written in UTF-8."""
    name = escape(advice.length_sample.name)
    length_sample = escape(_sentence(describe_sample(advice)))
    lead = f"{length_sample} {advice.world_size} data-parallel ranks."
    body = [
        f"<h1>evenstep advise: {name}</h1>",
        f'<p class="lead">{lead}</p>',
        _recommended(advice),
        "<h2>Lengths</h2>",
        _tiles(advice),
        _lengths(advice),
        "<h2>Predictions for each policy</h2>",
        _efficiency(advice),
        _table(advice),
        "<h2>Left out of the predictions</h2>",
        "<p>These are predictions under a cost model, not measurements. They leave out:</p>",
        _list(LEFT_OUT),
        *(["<h2>Notes on this data</h2>", _list(advice.notes)] if advice.notes else []),
        _made(advice),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>evenstep advise: {name}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _subscript(text: str) -> str:
    return escape(text).replace("f_s", "f<sub>s</sub>")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _recommended(advice: Advice) -> str:
    recommendation, setup = advice.recommendation, advice.setup
    chosen = advice.prediction(recommendation.policy)
    return (
        '<section class="box">'
        f"<h2>Recommended: <code>{escape(recommendation.policy)}</code></h2>"
        f"<p>{escape(_sentence(recommendation.reason))} The screen by CV and "
        f"f<sub>s</sub> expects a <strong>{advice.screen[0]}</strong> gain: "
        f"{_subscript(advice.screen[1])}.</p>"
        '<div class="tiles">'
        + _tile("predicted speed-up", _short(chosen.figures["speedup"], ".2f", " x"))
        + _tile("predicted efficiency", _short(chosen.figures["efficiency"], ".1%"))
        + _tile(
            "composition",
            _short(chosen.figures["composition"], ".2f"),
            "variance of length within steps; 1 is that of random batches",
        )
        + _tile("max_tokens", f"{setup.max_tokens:,}")
        + _tile("buffer_size", setup.windows)
        + "</div>"
        f"<pre><code>{escape(recommendation.code)}</code></pre>"
        "<p>The rules behind the numbers:</p>"
        + _list(f"{reason}." for reason in setup.reasons)
        + f"<p>{escape(setup.to_try)}</p>"
        f"<p>Learning rate. {escape(advice.learning_rate.text)}</p></section>"
    )


def _tiles(advice: Advice) -> str:
    summary = advice.summary
    return (
        '<div class="tiles">'
        + _tile("mean", _short(summary.mean, ",.0f"))
        + _tile("median", _short(summary.median, ",.0f"))
        + _tile("95th percentile", _short(summary.p95, ",.0f"))
        + _tile("99th percentile", _short(summary.p99, ",.0f"))
        + _tile(
            "longest" + ("" if advice.length_sample.longest else " drawn"),
            f"{advice.setup.longest:,}",
        )
        + _tile("CV", _short(summary.cv, ".2f"), "standard deviation over mean")
        + _tile("f<sub>s</sub>", _short(summary.short, ".3f"), "share under max_tokens / 4")
        + "</div>"
    )


def _short(value: Range, form: str, unit: str = "") -> str:
    text = f"{value.value:{form}}{unit}"
    if value.low == value.high:
        return text
    return f"{text}<small>{value.low:{form}} to {value.high:{form}}</small>"


def _tile(name: str, value: str, explanation: str = "") -> str:
    title = f' title="{explanation}"' if explanation else ""
    return f'<div class="tile"{title}><span>{name}</span><b>{value}</b></div>'


def _lengths(advice: Advice) -> str:
    budget = advice.setup.max_tokens
    chart = lengths_chart(
        advice.length_sample.lengths,
        [("max_tokens / 4", budget / 4), ("max_tokens", float(budget))],
    )
    return _figure(
        chart,
        "Lengths of samples on a logarithmic scale: above, the share of samples in each bin; "
        "below, the share up to that length. Left of max_tokens / 4 are the short samples of "
        f"f<sub>s</sub> ({advice.summary.short.value:.1%}), several of which fit one group.",
    )


def _efficiency(advice: Advice) -> str:
    bars = [
        Bar(
            name=one.policy,
            value=one.figures["efficiency"].value,
            low=one.figures["efficiency"].low,
            high=one.figures["efficiency"].high,
            label=f"{one.figures['efficiency'].value:.1%}, speed-up "
            f"{one.figures['speedup'].value:.2f}",
            style=_style(advice, one),
        )
        for one in advice.predictions
        if one.figures
    ]
    ranges = "" if advice.length_sample.whole else " Whiskers show the range over other draws."
    return _figure(
        bar_chart(bars, title="Predicted efficiency of each policy"),
        "Predicted efficiency: the share of all ranks' time spent on real tokens, not on padding "
        "or on waiting for the slowest rank; 100 % would waste nothing."
        f"{ranges} Speed-up is relative to {BASELINE} with batch_size {advice.setup.batch_size:,}.",
    )


def _style(advice: Advice, one: Prediction) -> str:
    if one.policy == advice.recommendation.policy:
        return "chosen"
    return "baseline" if one.policy == BASELINE else ""


def _table(advice: Advice) -> str:
    names = ["policy", "speed-up", "efficiency", "composition", "padding", "imbalance"]
    names += ["samples per update", "tokens per update"]
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = []
    for one in advice.predictions:
        given = f"<small>{escape(setting_of(one))}</small>"
        cells = [f"<td><code>{escape(marked(one))}</code>{given}</td>"]
        if one.problem is not None:
            cells.append(f'<td colspan="7">not predicted: {escape(one.problem)}</td>')
        else:
            for value, spread in figure_cells(one):
                small = f"<small>{spread}</small>" if spread else ""
                cells.append(f"<td>{value}{small}</td>")
        rows.append(f'<tr class="{_style(advice, one)}">{"".join(cells)}</tr>')
    marks = " ".join(marks_explained(advice.predictions))
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
        '<p class="caption">Composition is the variance of length within steps over that within '
        "random steps: 1 is random batches, 0 steps of one length. Padding is the share of "
        "computed tokens that are not real; imbalance is the cost of the costliest rank over the "
        "mean, 1 being perfect; samples and tokens are real ones, on all ranks together. "
        f"{marks}</p>"
    )


def _made(advice: Advice) -> str:
    drawn = (
        ""
        if advice.length_sample.whole
        else " Ranges are the 5 to 95 % over other draws of this size."
    )
    return (
        f"<footer>evenstep {__version__}, seed {advice.seed}. Cost model: "
        f"<code>{escape(repr(advice.cost))}</code>; a step takes as long as its costliest rank, "
        f"and every policy ran over the same lengths on {advice.world_size} ranks.{drawn}</footer>"
    )


def _figure(chart: str, caption: str) -> str:
    return f'<figure><div class="wide">{chart}</div><figcaption>{caption}</figcaption></figure>'


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
