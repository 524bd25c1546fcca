"""`evenstep advise --pool-sort`: which pool, what it costs, and whether it is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evenstep.cli.app import run as evenstep_command
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.pool_size import WORKERS, advise_pool_size
from evenstep.tools.simulate import sample_lengths


def drawn(total: int | None = None) -> LengthSample:
    lengths = sample_lengths("sharegpt4o", 2000, 1)
    return LengthSample(name="x", lengths=lengths, total=total, longest=None, how="drawn")


def test_larger_pools_wait_less_and_cost_more() -> None:
    advice = advise_pool_size(drawn(), world_size=4, batch_size=2, sample_seconds=0.5)
    waits = [pool.waits for pool in advice.pools]
    assert waits == sorted(waits, reverse=True)
    assert advice.unsorted.waits > 3 * waits[-1] > 0
    assert [pool.pool_size for pool in advice.pools] == [20, 100, 200, 1000, 10_000]
    assert advice.recommended.waits <= waits[-1] + 0.02
    smaller = [p for p in advice.pools if p.pool_size < advice.recommended.pool_size]
    assert all(pool.waits > waits[-1] + 0.02 for pool in smaller)
    rows = advice.as_dict()["pools"]
    assert len(rows) == 2 * len(waits) * len(WORKERS)
    mean = float(drawn().lengths.mean())
    for row in rows:
        workers, pool = row["workers"], row["pool_size"]
        together, memory = (1, workers) if row["own_pools"] else (workers, 1)
        assert row["first_batch_seconds"] == pytest.approx(0.5 * pool / together)
        assert row["memory"] == pytest.approx(16 * mean * pool * memory)


def test_no_pool_is_larger_than_what_a_rank_has() -> None:
    advice = advise_pool_size(drawn(total=900), world_size=4, batch_size=4)
    assert [pool.pool_size for pool in advice.pools] == [40, 100, 225]
    tiny = advise_pool_size(drawn(total=12), world_size=4, batch_size=8)
    assert [pool.pool_size for pool in tiny.pools] == [8]
    assert tiny.recommended.pool_size == 8


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.save(tmp_path / "lengths.npy", drawn().lengths[:400])
    return str(tmp_path / "lengths.npy")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sample-seconds", "1"), "add --pool-sort"),
        (("--pool-sort", "--max-tokens", "9"), "no use with --pool-sort"),
    ],
)
def test_options_that_have_no_use_are_refused(
    options: tuple[str, ...], said: str, data: str, capsys
) -> None:
    assert evenstep_command(("advise", data, *options)) != 0
    assert said in " ".join(capsys.readouterr().err.split())
