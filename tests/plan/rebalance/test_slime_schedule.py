"""The schedule for slime does what its caller relies on."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np

EXAMPLE = Path(__file__).parents[3] / "examples" / "slime_schedule.py"


def test_the_schedule_for_slime() -> None:
    names = run_path(str(EXAMPLE))
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(6.5, 0.8, 150).astype(int).clip(1, 4096)
    # Some rollouts have two sequences, and the last rollouts fill no step.
    rollouts = np.repeat(rng.permutation(120), np.arange(120) % 4 // 3 + 1)
    ranks, config = 4, {"cp_size": 2, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    partitions, micro_batches, counts, sizes = names["build_dp_schedule"](
        SimpleNamespace(max_tokens_per_gpu=2048),
        {"dp_size": ranks, **config},
        lengths.tolist(),
        global_batch_size=50,
        rollout_indices=rollouts.tolist(),
    )
    assert sizes == [50, 50]
    assert len(counts) == 2
    assert all(count % 2 == 0 for count in counts)
    kept = list(dict.fromkeys(rollouts.tolist()))[:100]
    assert sorted(chain(*partitions)) == np.flatnonzero(np.isin(rollouts, kept)).tolist()
    for own, groups in zip(partitions, micro_batches, strict=True):
        assert list(chain(*groups)) == list(range(len(own)))
        assert len(groups) == sum(counts)
        assert all(0 < lengths[[own[n] for n in group]].sum() <= 4096 for group in groups)
        first = {rollouts[own[n]] for group in groups[: counts[0]] for n in group}
        assert first <= set(kept[:50])
