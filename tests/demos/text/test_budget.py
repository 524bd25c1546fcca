from __future__ import annotations

import numpy as np

from evenstep.plan import Even, FixedBatch
from evenstep_demos.text.budget import TrainingOptions, _simulate, choose


def test_both_runs_take_about_as_many_steps() -> None:
    max_tokens = 1536
    lengths = np.random.default_rng(2).lognormal(5, 1, 800).astype(np.int64).clip(2, 600)
    options = TrainingOptions(max_tokens=max_tokens)
    choice = choose(lengths, options)
    assert lengths.max() <= choice.max_tokens <= max_tokens
    fixed, even = (
        _simulate(policy, lengths, options).steps
        for policy in (FixedBatch(choice.batch_size), Even(choice.max_tokens))
    )
    assert abs(fixed - even) <= 0.05 * fixed  # steps jump where one more long sample fits
