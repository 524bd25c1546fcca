"""Advice as plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from evenstep.tools.advise.advice import Advice
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Prediction
from evenstep.tools.report.table import text_table

_COLUMNS = 100
_FORMS = {
    "speedup": ("speed-up", ".2f"),
    "efficiency": ("efficiency", ".1%"),
    "composition": ("composition", ".2f"),
    "padding": ("padding", ".1%"),
    "imbalance": ("imbalance", ".3f"),
    "samples_per_update": ("samples/update", ",.1f"),
    "tokens_per_update": ("tokens/update", ",.0f"),
    "tokens_per_second": ("tokens/s/rank", ",.0f"),
}


def advice_text(advice: Advice) -> str:
    """Figures, predictions and recommendation."""
    recommendation = advice.recommendation
    reasons = [*(f"{reason}." for reason in advice.setup.reasons), advice.setup.to_try]
    summary = advice.summary
    drawn = "" if advice.length_sample.longest is not None else " drawn"
    lengths = [
        ("mean", f"{summary.mean:,.0f}"),
        ("median", f"{summary.median:,.0f}"),
        ("95th percentile", f"{summary.p95:,.0f}"),
        ("99th percentile", f"{summary.p99:,.0f}"),
        (f"longest{drawn}", f"{advice.setup.longest:,}"),
        ("CV (deviation / mean)", f"{summary.cv:.2f}"),
    ]
    return "\n\n".join(
        [
            _wrapped([f"{advice.length_sample.name}: {_described(advice)}."]),
            text_table(["tokens of a sample", ""], lengths),
            _wrapped(
                [
                    f"Recommended: {recommendation.policy}: {recommendation.reason}.",
                    *(f"- {reason}" for reason in reasons),
                ]
            ),
            textwrap.indent(recommendation.code, "    "),
            _predictions(advice),
            _wrapped(_explanations(advice)),
            _listed("Predictions, not measurements. They leave out:", LEFT_OUT),
            _listed("Notes", advice.notes),
        ]
    )


def _described(advice: Advice) -> str:
    """Says how many samples there are and how many were drawn."""
    length_sample = advice.length_sample
    count = len(length_sample.lengths)
    if length_sample.whole:
        return f"all {count:,} samples"
    of = "" if length_sample.total is None else f" of {length_sample.total:,}"
    return f"{count:,}{of} samples, {length_sample.how}"


def _setting_of(one: Prediction) -> str:
    """The policy's budget or batch size, and how many such groups an update adds up."""
    for name in ("batch_size", "target_tokens", "max_tokens"):
        if (value := one.options.get(name)) is not None:
            times = f"{one.accumulate} x " if one.accumulate > 1 else ""
            return f"{times}{name} {value:,}"
    return ""


def _explanations(advice: Advice) -> list[str]:
    """What the figures and marks of the predictions mean."""
    predictions = advice.predictions
    meaning = (
        f"Speed-up is efficiency over that of {BASELINE}: useful cost per unit of time, where a "
        "step takes as long as its costliest rank. Composition is the variance of length within "
        "steps over that within random steps: near 1, steps are like random batches; near 0, each "
        "holds samples of one length, which may cost quality. Padding is the share of computed "
        "tokens that are not real, imbalance the cost of the costliest rank over the mean. Samples "
        "and tokens are real ones, on all ranks together."
    )
    texts = [meaning]
    if any(one.needs_lengths for one in predictions):
        texts.append("* needs the lengths of all samples before training.")
    if any(one.packed for one in predictions):
        texts.append("+ makes padding-free groups: the model must take them (varlen attention).")
    return texts + [f"{one.policy}: {one.problem}" for one in predictions if one.problem]


def _predictions(advice: Advice) -> str:
    rows = []
    for one in advice.predictions:
        cells = [
            f"{one.figures[name]:{form}}" if name in one.figures else "-"
            for name, (_, form) in _FORMS.items()
        ]
        marks = "*" * one.needs_lengths + "+" * one.packed
        rows.append([one.policy + marks, _setting_of(one), *cells])
    setup = advice.setup
    title = (
        f"Predicted on {setup.world_size} ranks, buffer_size {setup.buffer_size}, cost "
        f"{advice.cost!r}"
    )
    return text_table(["policy", "with", *(name for name, _ in _FORMS.values())], rows, title=title)


def _listed(title: str, texts: Iterable[str]) -> str:
    return title + "\n" + _wrapped((f"- {text}" for text in texts), indent="  ")


def _wrapped(texts: Iterable[str], indent: str = "") -> str:
    return "\n".join(
        textwrap.fill(
            text,
            _COLUMNS,
            break_on_hyphens=False,
            initial_indent=indent,
            subsequent_indent=indent + ("  " if text.startswith("- ") else ""),
        )
        for text in texts
    )
