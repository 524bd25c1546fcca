"""Advice as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from evenstep.tools.advise.advice import Advice
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Prediction
from evenstep.tools.report.advice_text import (
    describe_sample,
    explanations,
    length_bins,
    length_figures,
    policy_name,
    prediction_figures,
    prediction_header,
    setting_of,
)
from evenstep.tools.report.page import bullets, columns, page, table, tiles, wide

_BINS = 48


def advice_page(advice: Advice) -> str:
    """The page as text, to be written in UTF-8."""
    sample = describe_sample(advice)
    figures = {
        escape(name): _with_range(value, spread) for name, value, spread in length_figures(advice)
    }
    lead = f"{sample[0].upper()}{sample[1:]}. {advice.world_size} data-parallel ranks."
    body = [
        f'<p class="lead">{escape(lead)}</p>',
        _recommended(advice),
        "<h2>Lengths</h2>",
        tiles(figures),
        _lengths(advice),
        "<h2>Predictions for each policy</h2>",
        _predictions(advice),
        "<h2>Left out of the predictions</h2>",
        "<p>These are predictions under a cost model, not measurements. They leave out:</p>",
        bullets(LEFT_OUT),
    ]
    if advice.notes:
        body += ["<h2>Notes on this data</h2>", bullets(advice.notes)]
    body.append(
        f'<p class="caption">Seed {advice.seed}, buffer_size {advice.setup.windows}, cost model '
        f"<code>{escape(repr(advice.cost))}</code>. Every policy ran over the same lengths.</p>"
    )
    return page(f"evenstep advise: {advice.length_sample.name}", body)


def _recommended(advice: Advice) -> str:
    recommendation, setup = advice.recommendation, advice.setup
    reason = recommendation.reason
    texts = [
        f"{reason[0].upper()}{reason[1:]}.",
        f"Expected gain: {advice.screen[0]}. {advice.screen[1]}.",
    ]
    return (
        '<section class="box">'
        f"<h2>Recommended: <code>{escape(recommendation.policy)}</code></h2>"
        + "".join(f"<p>{escape(text)}</p>" for text in texts)
        + f"<pre><code>{escape(recommendation.code)}</code></pre>"
        + bullets([*(f"{reason}." for reason in setup.reasons), setup.to_try])
        + f"<p>Learning rate. {escape(advice.learning_rate.text)}</p></section>"
    )


def _lengths(advice: Advice) -> str:
    edges, shares = length_bins(advice.length_sample.lengths, _BINS)
    budget = advice.setup.max_tokens

    def title(column: int, part: int) -> str:
        first, last = edges[column], edges[column + 1] - 1
        return f"{first:,} to {last:,} tokens: {shares[column]:.2%} of samples"

    def marked(column: int, part: int) -> str:
        inside = (edges[column] <= tokens < edges[column + 1] for tokens in (budget / 4, budget))
        return "marked" if any(inside) else ""

    chart = columns(
        shares[:, None] / shares.max(),
        title,
        classes=marked,
        ends=(f"{edges[0]:,}", "tokens of a sample, on a logarithmic scale", f"{edges[-1] - 1:,}"),
    )
    caption = (
        f"Share of samples by length. Marked columns hold max_tokens = {budget:,} and max_tokens / "
        f"4 = {budget / 4:,.0f}, if any sample is as long. Samples shorter than the latter are the "
        "short samples of f_s, several of which fit one group."
    )
    return wide("Lengths of samples", chart, caption)


def _predictions(advice: Advice) -> str:
    rows = []
    for one in advice.predictions:
        policy = f"<code>{escape(policy_name(one))}</code><small>{escape(setting_of(one))}</small>"
        cells = [_with_range(*cell) for cell in prediction_figures(one)]
        if one.problem is None:
            share = one.figures["efficiency"].value
            bar = f'<span class="bar" style="width:{share:.1%}"></span>'
            cells[prediction_header().index("efficiency")] += bar
        rows.append([policy, *cells])
    classes = [_style(advice, one) for one in advice.predictions]
    header = ["policy", *prediction_header()]
    return wide("Predictions", table(header, rows, classes), escape(" ".join(explanations(advice))))


def _style(advice: Advice, one: Prediction) -> str:
    if one.policy == advice.recommendation.policy:
        return "chosen"
    return "baseline" if one.policy == BASELINE else ""


def _with_range(value: str, spread: str) -> str:
    return f"{value}<small>{spread}</small>" if spread else value
