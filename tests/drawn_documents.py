"""Documents as Hypothesis draws them: tokens, and whether the label of each is kept."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Drawn = list[list[tuple[int, bool]]]

DRAWN = st.lists(
    st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=20),
    min_size=1,
    max_size=6,
)


def samples_of(docs: Drawn, make: Any = list, *, labelled: bool = True) -> list[dict[str, Any]]:
    samples = []
    for doc in docs:
        sample = {"input_ids": make([token for token, _ in doc])}
        if labelled:
            sample["labels"] = make([token if kept else -100 for token, kept in doc])
        samples.append(sample)
    return samples
