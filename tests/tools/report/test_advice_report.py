from __future__ import annotations

from sample_advice import NAME, made

from evenstep.tools.advise.predict import LEFT_OUT
from evenstep.tools.report.advice_text import advice_text


def lines_of(text: str) -> str:
    """Wrapped lines as one, to look for sentences."""
    return " ".join(text.split())


def test_all_parts_of_the_advice_are_shown() -> None:
    advice = made()
    text = lines_of(advice_text(advice))
    assert NAME in text
    assert "160 of 600 samples, drawn at random." in text
    assert "Expected gain: " in text
    for clause in (*LEFT_OUT, *advice.notes, *advice.setup.reasons):
        assert clause in text
    assert "broken: needs <numba>" in text
    assert f"Learning rate. {advice.learning_rate.text}" in text
    assert "buffer_size auto, cost" in text
    assert f"{advice.summary.cv.value:.2f}" in text
    assert f"{advice.prediction('even').figures['efficiency'].value:.1%}" in text
    assert lines_of(advice.recommendation.code) in text


def test_the_code_can_be_copied() -> None:
    advice = made()
    text = advice_text(advice)
    begin = text.index("    import evenstep")
    block = text[begin : text.index("\n\nPredicted on", begin)].splitlines()
    assert "\n".join(line[4:] for line in block) == advice.recommendation.code


def test_ranges_are_shown_only_if_samples_were_drawn() -> None:
    drawn, whole = lines_of(advice_text(made())), lines_of(advice_text(made(whole=True)))
    assert "over other draws" in drawn
    assert "over other draws" not in whole
    assert " to " not in whole[whole.index("tokens of a sample") : whole.index("Expected gain")]
    assert "all 160 samples" in whole
