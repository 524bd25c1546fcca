"""Advice as plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from evenstep.tools.advise.advice import Advice
from evenstep.tools.advise.figure_range import Range
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Prediction
from evenstep.tools.report.bins import Bins
from evenstep.tools.report.table import text_table

_COLUMNS = 100
_BINS, _BAR = 14, 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


def advice_text(advice: Advice) -> str:
    """Figures, predictions and recommendation."""
    parts = [
        _lines([f"{advice.length_sample.name}: {describe_sample(advice)}."]),
        _lengths(advice),
        _histogram(advice),
        _lines([f"Expected gain: {advice.screen[0]}. {advice.screen[1]}."]),
        _recommended(advice),
        _predictions(advice),
        _lines([f"Learning rate. {advice.learning_rate.text}"]),
        _lines(["Predictions, not measurements. They leave out:"])
        + "\n"
        + _lines((f"- {clause}" for clause in LEFT_OUT), indent="  "),
    ]
    if advice.notes:
        parts.append("Notes\n" + _lines((f"- {text}" for text in advice.notes), indent="  "))
    return "\n\n".join(parts)


def describe_sample(advice: Advice) -> str:
    """Says how many samples there are and how many were drawn."""
    length_sample = advice.length_sample
    count = len(length_sample.lengths)
    if length_sample.whole:
        return f"all {count:,} samples"
    of = "" if length_sample.total is None else f" of {length_sample.total:,}"
    return f"{count:,}{of} samples, {length_sample.how}"


def _ranged(value: Range, form: str) -> str:
    """The figure, with its range if it has one."""
    middle, low, high = (f"{number:{form}}" for number in (value.value, value.low, value.high))
    return middle if value.low == value.high else f"{middle} ({low} to {high})"


def setting_of(one: Prediction) -> str:
    """The policy's setting, its budget or its batch size, and how often an update has it."""
    for name in ("batch_size", "target_tokens", "max_tokens"):
        if (value := one.options.get(name)) is not None:
            times = f"{one.accumulate} x " if one.accumulate > 1 else ""
            return f"{times}{name} {value:,}"
    return ""


def figure_cells(one: Prediction) -> list[tuple[str, str]]:
    """Speed-up, efficiency, composition, padding, imbalance, samples and tokens per update: each
    value, and its range if it has one."""
    forms = {
        "speedup": ".2f",
        "efficiency": ".1%",
        "composition": ".2f",
        "padding": ".1%",
        "imbalance": ".3f",
        "samples_per_update": ",.1f",
        "tokens_per_update": ",.0f",
    }
    if one.problem is not None:
        return [("-", "")] * len(forms)
    cells = []
    for name, form in forms.items():
        value = one.figures[name]
        spread = "" if value.low == value.high else f"{value.low:{form}} to {value.high:{form}}"
        cells.append((f"{value.value:{form}}", spread))
    return cells


def marked(one: Prediction) -> str:
    """The policy's name, with * if it needs lengths in advance and + if its groups are packed."""
    return one.policy + "*" * one.needs_lengths + "+" * one.packed


def marks_explained(predictions: Iterable[Prediction]) -> list[str]:
    """The meaning of the marks that occur."""
    found = list(predictions)
    texts = []
    if any(one.needs_lengths for one in found):
        texts.append("* needs the lengths of all samples before training.")
    if any(one.packed for one in found):
        texts.append("+ makes padding-free groups: the model must take them (varlen attention).")
    return texts


def _lengths(advice: Advice) -> str:
    summary = advice.summary
    rows = [
        ("mean", summary.mean, ",.0f"),
        ("median", summary.median, ",.0f"),
        ("95th percentile", summary.p95, ",.0f"),
        ("99th percentile", summary.p99, ",.0f"),
        ("CV (deviation / mean)", summary.cv, ".2f"),
        (f"f_s (share under {summary.max_tokens / 4:,.0f})", summary.short, ".3f"),
    ]
    cells = [(name, _ranged(value, form)) for name, value, form in rows]
    whose = "" if advice.length_sample.longest is not None else " drawn"
    cells.insert(4, (f"longest{whose}", f"{advice.setup.longest:,}"))
    return text_table(["tokens of a sample", ""], cells)


def _histogram(advice: Advice) -> str:
    bins = Bins.count(advice.length_sample.lengths, _BINS)
    most = bins.shares.max()
    budget = advice.setup.max_tokens
    width = len(f"{bins.edges[-1] - 1:,}")
    lines = []
    for index, share in enumerate(bins.shares):
        first, last = bins.edges[index], bins.edges[index + 1] - 1
        marks = "".join(
            f"  <- {name}"
            for name, tokens in (("max_tokens / 4", budget / 4), ("max_tokens", budget))
            if bins.holds(index, tokens)
        )
        bar = _bar(share / most)
        lines.append(f"{first:>{width},} - {last:>{width},}  {bar:<{_BAR}} {share:6.1%}{marks}")
    if budget >= bins.edges[-1]:
        lines.append(f"max_tokens is {budget:,}")
    return "\n".join(lines)


def _bar(share: float) -> str:
    whole, rest = divmod(round(share * _BAR * 8), 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def _recommended(advice: Advice) -> str:
    recommendation = advice.recommendation
    code = textwrap.indent(recommendation.code, "    ")
    texts = [
        f"Recommended: {recommendation.policy}: {recommendation.reason}.",
        *(f"- {reason}." for reason in advice.setup.reasons),
        f"- {advice.setup.to_try}",
    ]
    return f"{_lines(texts)}\n\n{code}"


def _predictions(advice: Advice) -> str:
    rows = []
    for one in advice.predictions:
        cells = figure_cells(one)
        rows.append([marked(one), setting_of(one), *(value for value, _ in cells)])
        if any(spread for _, spread in cells):
            rows.append(["", "", *(spread for _, spread in cells)])
    header = ["policy", "with", "speed-up", "efficiency", "composition", "padding", "imbalance"]
    header += ["samples/update", "tokens/update"]
    title = (
        f"Predicted on {advice.world_size} ranks, buffer_size {advice.setup.windows}, cost "
        f"{advice.cost!r}"
    )
    meaning = (
        f"Speed-up is efficiency over that of {BASELINE}: useful cost per unit of time, where a "
        "step takes as long as its costliest rank. Composition is the variance of length within "
        "steps over that within random steps: near 1, steps are like random batches; near 0, each "
        "holds samples of one length, which may cost quality. Samples and tokens are real ones, on "
        "all ranks together."
    )
    texts = [meaning]
    if not advice.length_sample.whole:
        texts.append(
            "Below each figure: its 5 to 95 % range over other draws of this size, in other orders."
        )
    texts += marks_explained(advice.predictions)
    texts += [f"{one.policy}: {one.problem}" for one in advice.predictions if one.problem]
    return f"{text_table(header, rows, title=title)}\n\n{_lines(texts)}"


def _lines(texts: Iterable[str], indent: str = "") -> str:
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
