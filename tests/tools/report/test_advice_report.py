from __future__ import annotations

from functools import cache

import numpy as np

from evenstep.cost import PaddedTokenCost
from evenstep.plan import Even, FixedBatch, Policy
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.tools.advise import Advice, LengthSample, advise, set_up
from evenstep.tools.advise.predict import LEFT_OUT
from evenstep.tools.report.advice_text import advice_text

NAME = "chat<&>.parquet:tokens"


def _broken(options: PolicyOptions) -> Policy:
    raise ImportError("needs <numba>")


@cache
def made(*, whole: bool = False) -> Advice:
    """Advice of three policies, of which one cannot run; from drawn samples, or from all."""
    lengths = np.random.default_rng(1).lognormal(5, 1, 160).astype(np.int64) + 1
    length_sample = LengthSample(
        name=NAME,
        lengths=lengths,
        total=len(lengths) if whole else 600,
        longest=int(lengths.max()) if whole else None,
        how="drawn at random",
    )
    return advise(
        length_sample,
        {
            "even": lambda s: Even(s.max_tokens, cost=s.cost),
            "fixed-batch": lambda s: FixedBatch(s.batch_size, cost=s.cost),
            "broken": _broken,
        },
        setup=set_up(length_sample, world_size=2),
        cost=PaddedTokenCost(),
    )


def lines_of(text: str) -> str:
    """Wrapped lines as one, to look for sentences."""
    return " ".join(text.split())


def test_all_parts_of_the_advice_are_shown() -> None:
    advice = made()
    text = lines_of(advice_text(advice))
    assert NAME in text
    assert "160 of 600 samples, drawn at random." in text
    for clause in (*LEFT_OUT, *advice.notes, *advice.setup.reasons):
        assert clause in text
    assert "broken: needs <numba>" in text
    assert "buffer_size auto, cost" in text
    assert f"{advice.summary.cv:.2f}" in text
    assert f"{advice.prediction('even').figures['efficiency']:.1%}" in text
    assert lines_of(advice.recommendation.code) in text


def test_the_code_can_be_copied() -> None:
    advice = made()
    text = advice_text(advice)
    begin = text.index("    import evenstep")
    block = text[begin : text.index("\n\nPredicted on", begin)].splitlines()
    assert "\n".join(line[4:] for line in block) == advice.recommendation.code


def test_all_samples_are_called_so() -> None:
    assert "all 160 samples" in lines_of(advice_text(made(whole=True)))
