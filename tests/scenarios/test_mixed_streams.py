"""Streams of Hugging Face and WebDataset in one mixture: every sample once, and an exact resume."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
import webdataset

import evenstep
from evenstep.testing import assert_exact_resume


def row(name: str, index: int) -> dict[str, Any]:
    return {"input_ids": [1] * (3 + index % 7), "identity": index + 1000 * (name == "web")}


def from_tar(sample: dict[str, Any]) -> dict[str, Any]:
    return row("web", int(sample["txt"]))


def collate(samples: list[dict[str, Any]]) -> Any:
    """Without the key that WebDataset adds to its samples."""
    return evenstep.PadCollator()([{n: s[n] for n in ("input_ids", "identity")} for s in samples])


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    paths = []
    for shard in range(2):
        paths.append(str(tmp_path / f"{shard}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for index in range(20 * shard, 20 * shard + 20):
                entry = tarfile.TarInfo(f"{index:04}.txt")
                entry.size = len(text := str(index).encode())
                tar.addfile(entry, io.BytesIO(text))
    return paths


def test_streams_of_two_libraries_are_mixed_and_resume(shards: list[str]) -> None:
    def make() -> evenstep.DataLoader:
        rows = datasets.Dataset.from_list([row("code", index) for index in range(60)])
        web = webdataset.WebDataset(shards, shardshuffle=False).decode().map(from_tar)
        mixture = evenstep.Mixture(
            {"code": rows.to_iterable_dataset(num_shards=4), "web": web},
            {"code": 0.6, "web": 0.4},
            stop="all_exhausted",
            samples_per_step=16,
        )
        return evenstep.DataLoader(
            mixture,
            policy=evenstep.TokenBudget(40),
            collate_fn=collate,
            num_workers=2,
            multiprocessing_context="fork",
            memory=evenstep.Memory(buffer_size=8),
            group="local",
        )

    loader = make()
    steps = list(loader.steps())
    loader.close()
    seen = Counter(identity for batch, _ in steps for identity in batch["identity"].tolist())
    wanted = {*range(60), *range(1000, 1040)}
    assert seen == dict.fromkeys(wanted, 1)
    total: Counter[str] = Counter()
    for _, step in steps:
        assert step.indices is None
        total.update({name: samples for name, (samples, _) in step.sources.items()})
    assert total == {"code": 60, "web": 40}
    assert assert_exact_resume(make, every=12) > 2
