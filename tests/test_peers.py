"""The table of data loaders: figures of real jobs with torch's loader, which is always there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import data, measure, registry, tables
from benchmarks.peers.__main__ import arguments

ROOT = Path(__file__).parents[1]
SAMPLES = 400


@pytest.fixture(autouse=True)
def _few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(data, "ROOT", tmp_path)
    monkeypatch.setattr(data, "QUICK", dict.fromkeys(data.QUICK, SAMPLES))


@pytest.mark.soak
def test_two_ranks_see_every_sample_once_and_give_all_figures() -> None:
    found = measure.speed("torch", "padded", 2, True)
    assert (found["samples"], found["missed"]) == (SAMPLES, 0)
    assert found["steps"] == [13, 13]  # 200 samples in batches of 16
    assert found["samples_per_s"] > 0
    assert 0 < found["padding"] < 1 < found["imbalance"] < 2
    assert found["peak_mib"] > 100
    line = {"peer": "torch", "workload": "padded", "ranks": 2, "kind": "speed", "quick": True}
    options = arguments().parse_args(["show", "torch", "--quick"])
    of = tables.Found.of([{**line, "session": 1.0, "figures": found}], options)
    (table,) = of.tables()
    assert table.rows[0][:2] == ["torch DataLoader", "1.00 (1.00-1.00)"]
    assert of.summary().rows[0][:3] == ["torch DataLoader", "-, 1.00", "-, -"]


@pytest.mark.soak
def test_a_killed_worker_of_torch_is_an_error_on_the_rank() -> None:
    found = measure.kill("torch", "padded", 1, True)
    assert found["outcome"] == "error", found
    assert "killed by signal" in found["text"] or "exited unexpectedly" in found["text"]


def test_samples_lost_and_repeated_are_counted() -> None:
    ids = list(range(SAMPLES))
    first, second = {"ids": ids[:100]}, {"ids": [*ids[90:390], 200]}
    assert measure.missed("padded", True, first, second) == {"lost": 10, "repeated": 11}


def test_every_peer_has_an_adapter_and_pins_what_it_compares_with() -> None:
    for name, peer in registry.PEERS.items():
        assert (ROOT / f"benchmarks/peers/adapters/{peer.adapter}.py").exists()
        if peer.requirements:
            pins = (registry.LOCKS / f"{name}.txt").read_text().splitlines()
            package, _, release = peer.requirements[0].partition("==")
            assert f"{package.partition('[')[0]}=={release}" in pins
