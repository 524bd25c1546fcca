from __future__ import annotations

import re

from sample_advice import NAME, made

from evenstep.tools.advise.predict import LEFT_OUT
from evenstep.tools.report.advice_text import advice_text


def lines_of(text: str) -> str:
    """Wrapped lines as one, to look for sentences."""
    return " ".join(text.split())


def test_all_parts_of_the_advice_are_printed() -> None:
    advice = made()
    text = lines_of(advice_text(advice))
    assert text.startswith(f"{NAME}: 160 of 600 samples, drawn at random.")
    assert f"{advice.summary.cv.value:.2f} (" in text
    assert "Expected gain: " in text
    assert f"max_tokens={advice.setup.max_tokens}" in text
    assert "predicted" in text
    assert all(clause in text for clause in LEFT_OUT)
    assert all(note in text for note in advice.notes)
    assert "broken: needs <numba>" in text
    assert f"Learning rate. {advice.learning_rate.text}" in text
    assert " composition " in text
    assert "buffer_size auto, cost" in text


def test_the_code_can_be_copied() -> None:
    advice = made()
    text = advice_text(advice)
    begin = text.index("    import evenstep")
    block = text[begin : text.index("\n\nPredicted on", begin)].splitlines()
    assert "\n".join(line[4:] for line in block) == advice.recommendation.code


def test_the_bars_of_the_histogram_add_up() -> None:
    text = advice_text(made())
    shares = [line for line in text.splitlines() if re.match(r" *[\d,]+ - ", line)]
    values = [float(line.split("%")[0].split()[-1]) for line in shares]
    assert abs(sum(values) - 100) < 0.05 * len(values) + 1e-9
    longest = max(shares, key=lambda line: float(line.split("%")[0].split()[-1]))
    assert longest.count("█") == 40


def test_ranges_are_printed_only_if_samples_were_drawn() -> None:
    drawn, whole = lines_of(advice_text(made())), lines_of(advice_text(made(whole=True)))
    assert "over other draws" in drawn
    assert "over other draws" not in whole
    assert " to " not in whole[whole.index("tokens of a sample") : whole.index("Expected gain")]
    assert "all 160 samples" in whole
