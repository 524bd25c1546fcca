"""Whether the samples that a window holds back are longer, or shorter, than those that came.

What is held back is trained on last. If long samples fit targets less often than short ones, the
updates of an epoch grow longer toward its end, and each of them is less like the data.
"""

from __future__ import annotations

import math

from evenstep.plan.policy import Window


def drift(window: Window) -> float:
    """Mean length of the samples of a window minus that of all that the rank's windows have held,
    each token counted, in standard errors of the former: positive where long samples are held back.
    0 where nothing is known of the others.
    """
    tokens, squares = window.seen_lengths
    lengths = window.lengths.astype(float)
    held, second = float(lengths.sum()), float((lengths**2).sum())
    mean = second / held
    variance = float((lengths**3).sum()) / held - mean * mean
    error = math.sqrt(max(variance, 0.0) * second) / held
    if not tokens or error < 1e-9 * mean:
        return 0.0
    return (mean - squares / tokens) / error
