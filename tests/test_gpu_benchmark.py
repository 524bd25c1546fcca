"""What is measured on a GPU runs on the CPU, too, and its page has what is stored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.model import TINY, Batch, decoder
from benchmarks.gpu.page import BEGIN, measured, section
from benchmarks.gpu.plans import CHAT, LONG, epochs
from benchmarks.gpu.steps import time_steps
from benchmarks.gpu.training import time_loader

CPU = torch.device("cpu")
PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"


def test_the_page_has_the_stored_results() -> None:
    assert PAGE.read_text().split(BEGIN)[1].strip() == measured().strip()


def test_packed_documents_have_the_loss_that_each_has_alone() -> None:
    model = decoder(TINY, CPU)
    lengths = [5, 1, 9]
    torch.manual_seed(1)
    packed = Batch.random(lengths, TINY.vocab_size, CPU, packed=True)
    parts = packed.tokens.split(lengths)
    alone = [model(Batch(tokens=one[None], labels=one[None])) for one in parts]
    torch.testing.assert_close(model(packed), torch.stack(alone).sum())
    padded = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-100)
    torch.testing.assert_close(model(Batch(tokens=padded, labels=labels)), model(packed))
    random = Batch.random(lengths, TINY.vocab_size, CPU, packed=False)
    assert (random.labels != -100).sum(1).tolist() == lengths


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
    time_steps(LONG.scaled(128), TINY, CPU, 0.5, rows.append)
    assert [row["batches"] for row in rows] == ["best-fit packing", "`Even`, packed"]
    for row in rows:
        assert row["steps"] >= 2
        assert 1 <= row["measured"] <= row["ranks"]
        assert row["tokens_per_second"] > 0
    loader: list[dict[str, Any]] = []
    time_loader(CHAT.scaled(64), TINY, CPU, 0.6, loader.append)
    assert [row["batches"] for row in loader] == ["fixed batches of 8", "`Even`", "`Even`, packed"]
    assert all(row["steps"] > 0 and 0 <= row["waiting_for_data"] < 1 for row in loader)
    parts = {"long": rows, "loader": loader}
    told = {name: {"outcome": "ok", "rows": found} for name, found in parts.items()}
    page = "\n".join(section({"device": "CPU", "torch": "2", "parts": told}))
    assert page.count("| long documents: ") == 2
    assert page.count("%") == 5


def test_without_a_gpu_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "--out", str(out)])
    command.main()
    assert "torch finds no CUDA device" in capsys.readouterr().out
    assert not out.exists()
