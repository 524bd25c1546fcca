from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.context_parallel.latency import BACKWARD, FORWARD, AttentionLatency, load_latency
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import shard_per_document

KNOWN: dict[str, Any] = {
    "heads": 2,
    "head_size": 64,
    "queries": (128, 512),
    "keys": (128, 512, 2048),
    "forward_tflops": ((10.0, 20.0, 40.0), (30.0, 60.0, 160.0)),
    "backward_tflops": ((5.0, 10.0, 20.0), (15.0, 30.0, 80.0)),
    "forward_launch": 1e-5,
    "backward_launch": 3e-5,
    "device": "Abacus 3000",
    "kernel": "beads",
    "dtype": "bf16",
    "versions": (("torch", "2.5.0"),),
}


def known(**changes: Any) -> AttentionLatency:
    return AttentionLatency(**{**KNOWN, **changes})


def one(latency: AttentionLatency, queries: int, keys: int) -> tuple[float, float]:
    shape = (np.array([queries]), np.array([keys]))
    forward, backward = latency.passes(*shape)[:, 0].tolist()
    return forward, backward


def tiles(queries: int, keys: int, tile: int) -> int:
    """Operations of rows of `tile` queries; each row meets the keys up to its last one."""
    last = [min(row + tile, queries) for row in range(0, queries, tile)]
    return sum(-(-(keys - queries + end) // tile) for end in last)


def test_at_a_point_of_the_table_it_is_operations_on_tiles_over_throughput() -> None:
    for row, queries in enumerate(KNOWN["queries"]):
        for column, keys in enumerate(KNOWN["keys"]):
            if queries > keys:
                continue
            elements = tiles(queries, keys, 128) * 128 * 128 * 2 * 64
            forward, backward = one(known(), queries, keys)
            rate = KNOWN["forward_tflops"][row][column] * 1e12
            assert forward == pytest.approx(FORWARD * elements / rate)
            rate = KNOWN["backward_tflops"][row][column] * 1e12
            assert backward == pytest.approx(BACKWARD * elements / rate)


def test_between_points_throughput_is_their_geometric_mean_half_way_in_logarithms() -> None:
    forward, backward = known().throughput(np.array([256]), np.array([1024]))
    corners = [20.0, 40.0, 60.0, 160.0]
    assert forward[0] == pytest.approx(1e12 * np.prod(corners) ** 0.25)
    assert backward[0] == pytest.approx(0.5 * forward[0])


def test_outside_the_table_throughput_is_that_of_its_edge() -> None:
    queries, keys = np.array([1, 4096, 128]), np.array([1, 100_000, 100_000])
    forward, _ = known().throughput(queries, keys)
    assert forward == pytest.approx([10e12, 160e12, 40e12])


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from(["rank", "fragment"]),
)
def test_a_rank_takes_its_fragments_and_its_launches(
    lengths: list[int], ranks: int, launches: str
) -> None:
    latency, sharding = known(launches=launches), shard_per_document(lengths, ranks)
    free = known(forward_launch=0.0, backward_launch=0.0)
    found = latency.of_ranks(sharding)
    for rank in range(ranks):
        own = range(sharding.offsets[rank], sharding.offsets[rank + 1])
        calls = 1 if launches == "rank" else len(own)
        parts = [
            one(free, int(sharding.end[f] - sharding.start[f]), int(sharding.end[f])) for f in own
        ]
        for which, launch in enumerate((1e-5, 3e-5)):
            expected = calls * launch + sum(part[which] for part in parts)
            assert found[which, rank] == pytest.approx(expected)


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (6, 5), (-1, 5)])
def test_what_is_not_a_fragment_is_refused(queries: int, keys: int) -> None:
    with pytest.raises(ConfigurationError, match="queries"):
        known()(np.array([3, queries]), np.array([3, keys]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "heads"),
        ({"tile": 0}, "tile"),
        ({"queries": (128,)}, "queries=.*two lengths"),
        ({"keys": (128, 128, 512)}, "keys=.*ascending"),
        ({"queries": (0, 128)}, "from 1"),
        ({"forward_tflops": ((1.0, 2.0, 3.0),)}, "forward_tflops has 1 rows"),
        ({"backward_tflops": ((1.0, 2.0), (1.0, 2.0))}, "must have 2 of 3"),
        ({"forward_tflops": ((1.0, 2.0, 0.0), (1.0, 1.0, 1.0))}, "positive"),
        ({"backward_tflops": ((1.0, 2.0, float("nan")), (1.0, 1.0, 1.0))}, "finite"),
        ({"forward_launch": -1e-9}, "forward_launch"),
        ({"backward_launch": float("inf")}, "backward_launch"),
        ({"launches": "tile"}, "launches='tile'"),
    ],
)
def test_wrong_models_are_refused_where_they_are_built(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        known(**changes)


def test_a_file_gives_back_what_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "new" / "latency.json"
    known(kv_heads=1).save(path, measured={"shapes": 3})
    with caplog.at_level(logging.INFO, logger="evenstep"):
        loaded = load_latency(path, device="Abacus 3000", kernel="beads")
    assert loaded == known(kv_heads=1)
    assert f"{path}: measured on Abacus 3000 with beads, bf16" in caplog.messages
    content = json.loads(path.read_text())
    assert content["measured"] == {"shapes": 3}
    assert [file.name for file in path.parent.iterdir()] == ["latency.json"]


@pytest.mark.parametrize("what", ["device", "kernel"])
def test_a_file_of_another_device_or_kernel_is_refused_and_both_are_named(
    tmp_path: Path, what: str
) -> None:
    path = tmp_path / "latency.json"
    known().save(path)
    with pytest.raises(ConfigurationError, match=f"{what} '{KNOWN[what]}'.* for 'other'"):
        load_latency(path, **{what: "other"})


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    known().save(path)
    path.write_text(path.read_text().replace("160.0", "161.0"))
    with pytest.raises(ConfigurationError, match=r"damaged.*evenstep profile --attention"):
        load_latency(path)
