"""Benchmarks: pages have what is stored and what runs give again; what is measured runs here."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.model import TINY
from benchmarks.gpu.page import BEGIN, measured, section
from benchmarks.gpu.plans import CHAT, LONG, epochs
from benchmarks.gpu.steps import time_steps
from benchmarks.gpu.training import time_loader
from benchmarks.papers import book
from benchmarks.papers.outcome import Outcome
from benchmarks.peers import data, measure, registry

ROOT = Path(__file__).parents[1]

# GPUs


def test_the_page_of_gpus_has_the_stored_results() -> None:
    assert (ROOT / "docs" / "gpu.md").read_text().split(BEGIN)[1].strip() == measured().strip()


def test_every_sample_is_in_one_step_of_an_epoch() -> None:
    texts = LONG.scaled(64)
    expected = Counter(texts.lengths.tolist())
    for epoch in epochs(texts, TINY):
        found = Counter(n for step in epoch.steps for group in step for n in group)
        assert not expected - found, epoch.batches
        assert (found - expected).total() < texts.ranks  # repeated, where shares are equal
        assert all(len(step) == texts.ranks for step in epoch.steps)
        assert sorted(epoch.some(0)) == sorted(epoch.steps)


@pytest.mark.soak
def test_steps_and_the_loader_are_timed_on_the_cpu() -> None:
    rows: list[dict[str, Any]] = []
    time_steps(LONG.scaled(128), TINY, torch.device("cpu"), 0.5, rows.append)
    assert [row["batches"] for row in rows] == ["best-fit packing", "`Even`, packed"]
    for row in rows:
        assert row["steps"] >= 2
        assert 1 <= row["measured"] <= row["ranks"]
        assert row["tokens_per_second"] > 0
    loader: list[dict[str, Any]] = []
    time_loader(CHAT.scaled(64), TINY, torch.device("cpu"), 0.6, loader.append)
    assert [row["batches"] for row in loader] == ["fixed batches of 8", "`Even`", "`Even`, packed"]
    assert all(row["steps"] > 0 and 0 <= row["waiting_for_data"] < 1 for row in loader)
    parts = {"long": rows, "loader": loader}
    told = {name: {"outcome": "ok", "rows": found} for name, found in parts.items()}
    page = "\n".join(section({"device": "CPU", "torch": "2", "parts": told}))
    assert page.count("| long documents: ") == 2
    assert page.count("%") == 5


# Peers

SAMPLES = 400


@pytest.fixture
def _few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(data, "ROOT", tmp_path)
    monkeypatch.setattr(data, "QUICK", dict.fromkeys(data.QUICK, SAMPLES))


@pytest.mark.usefixtures("_few")
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


# Papers

PAGE = book.PAGE.read_text()
RESULTS = json.loads(book.RESULTS.read_text())
CHEAP = ["odb/appendix-d", "odb/figure-2a", "odb/table-6"]
NOT_LONG = [*CHEAP, "wlb/figure-15"]  # which is timed, and never the same twice
LONG_RUN = [pytest.mark.soak, pytest.mark.timeout(3600)]


def test_every_entry_has_a_row_of_the_page_and_every_row_its_kind() -> None:
    rows = [row[2:-2].split(" | ") for row in re.findall(r"^\| .* \|$", PAGE, re.MULTILINE)]
    rows = [row for row in rows if row[1] not in ("shown on", "---")]
    assert sorted(row[-1] for row in rows if row[-1].strip()) == sorted(book.RUNS)
    assert set(book.RUNS) >= book.SLOW
    for _, kind, paper, ours, why, key in rows:
        assert why
        assert kind in ("same", "other", "not")
        assert bool(key.strip()) == bool(paper) == bool(ours)
        assert key.strip() or kind == "not"
        assert kind != "same" or paper == ours


def test_the_page_names_tests_that_exist() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_the_page_of_papers_has_the_stored_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(RESULTS) == set(book.RUNS)
    assert book.filled(PAGE, RESULTS) == PAGE
    for name in ("PAGE", "RESULTS"):
        path = getattr(book, name)
        monkeypatch.setattr(book, name, tmp_path / path.name)
        (tmp_path / path.name).write_text(path.read_text().replace("22 steps on all", "lost"))
    book.store("odb/table-6", Outcome([], *RESULTS["odb/table-6"]))
    assert book.PAGE.read_text() == PAGE
    assert json.loads(book.RESULTS.read_text()) == RESULTS


@pytest.mark.parametrize(
    "name", [*CHEAP, *(pytest.param(n, marks=LONG_RUN) for n in book.RUNS if n not in NOT_LONG)]
)
def test_a_run_prints_what_the_page_says(name: str) -> None:
    outcome = book.outcome_of(name)
    assert [outcome.paper, outcome.ours] == RESULTS[name]
    assert f"paper {outcome.paper}; evenstep {outcome.ours}" in outcome.markdown()
