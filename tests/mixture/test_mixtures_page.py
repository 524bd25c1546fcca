"""The code on mixtures of docs/mixtures.md runs, as it stands, one block after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from mixing_world import Arrays

from page_code import blocks


def test_the_page_runs_from_its_beginning_to_its_end():
    lengths = np.random.default_rng(0).integers(1, 400, (2, 1000))
    names: dict[str, Any] = {"provider": Arrays(dict(zip(("web", "code"), lengths.tolist())))}
    rows = [{"input_ids": [1] * (2 + i % 9)} for i in range(50)]
    tokens: dict[str, Any] = {"code": rows, "chat": rows}
    (loop,) = blocks("mixtures.md", "In the loader")
    exec(compile(loop, "mixtures.md", "exec"), tokens)
    tokens["loader"].close()
    assert tokens["loader"].samples == tokens["loader"].epoch_samples == 100
    assert sum(each.samples for each in tokens["counts"].values()) == tokens["step"].global_samples
    for block in blocks("mixtures.md", "Steps, weights and ends"):
        exec(compile(block, "mixtures.md", "exec"), names)
    for mixture in ("mixture", "live", "by_tokens", "growing"):
        assert names[mixture].step > 0
    assert names["harder"]({"web": 1.0}, {"loss_by_source": {"web": 2.0}}) == {"web": 1.1}
    assert names["warm_up"].weights(1000, None)["code"] == 0.2
    assert names["per_step"].weights(500, None) == {"web": 1, "code": 0.5}
    assert names["both"].weights(550, None) == {"web": 0.5, "code": 0.5}
