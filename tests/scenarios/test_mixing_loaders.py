"""Loaders over mixtures, in real processes: what ranks count, and how they resume."""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, run, run_all
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, WeightedRandomSampler, get_worker_info

import evenstep
from documents import Documents
from evenstep.errors import MismatchError
from evenstep.testing import assert_exact_resume

SIZES = {"code": 160, "chat": 90}
WEIGHTS = {"code": 0.7, "chat": 0.3}
DATASETS = {
    name: Documents(size, longest=longest, prompts=True, seed=number)
    for number, (name, size, longest) in enumerate(zip(SIZES, SIZES.values(), (256, 64)))
}
OPTIONS: dict[str, Any] = {
    "policy": evenstep.Even(300),
    "seed": 4,
    "memory": evenstep.Memory(buffer_size=16),
}


class Shard(IterableDataset):  # type: ignore[type-arg]
    """Every n-th document of a dataset."""

    def __init__(self, name: str, rank: int, ranks: int) -> None:
        self.documents, self.rank, self.ranks = DATASETS[name], rank, ranks

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        own = range(self.rank * workers + worker, len(self.documents), self.ranks * workers)
        return (self.documents[index] for index in own)


def make_loader(kind: str, rank: int, ranks: int) -> evenstep.DataLoader:
    workers: dict[str, Any] = {}
    if kind.endswith("workers"):
        workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    if kind.startswith("stream"):
        shards = {name: Shard(name, rank, ranks) for name in DATASETS}
        mixture = evenstep.Mixture(shards, WEIGHTS, samples_per_epoch=200, samples_per_step=32)
        return evenstep.DataLoader(mixture, **workers, **OPTIONS)
    mixture = evenstep.Mixture(DATASETS, WEIGHTS, samples_per_epoch=120, samples_per_step=32)
    return evenstep.DataLoader(mixture, shuffle=True, **workers, **OPTIONS)


def identity(loader: evenstep.DataLoader, index: int) -> tuple[str, int]:
    name = loader.dataset.source_of(index)
    return name, index - (0 if name == "code" else SIZES["code"])


def trained(loader: evenstep.DataLoader, steps: int | None = None) -> list[Any]:
    """Makes so many steps, or the rest of the epoch; what was in them, checked by value."""
    seen = []
    for batch, step in loader.steps():
        if step.indices and not step.filler:
            for row, index in enumerate(step.indices):
                name, own = identity(loader, index)
                expected = DATASETS[name][own]["input_ids"]
                assert batch["identity"][row] == own
                assert batch["input_ids"][row, : len(expected)].equal(expected)
        of_all = {name: list(each) for name, each in step.global_sources.items()}
        assert sum(samples for samples, _ in of_all.values()) == step.global_samples
        assert sum(tokens for _, tokens in of_all.values()) == step.global_tokens
        own_counts = Counter(loader.dataset.source_of(i) for i in step.indices or ())
        if step.indices is not None:
            assert {n: c for n, (c, _) in step.sources.items() if c} == dict(own_counts)
        seen.append({"indices": step.indices, "of_all": of_all})
        if len(seen) == steps:
            break
    return seen


def check_exact(rank: Rank) -> dict[str, int]:
    kinds = {"rows": 11, "stream, workers": 27}
    return {
        kind: assert_exact_resume(
            lambda kind=kind: make_loader(kind, rank.rank, rank.world_size), epochs=2, every=every
        )
        for kind, every in kinds.items()
    }


def begin(rank: Rank, folder: Path) -> list[Any]:
    loader = make_loader("rows", rank.rank, rank.world_size)
    seen = trained(loader) + trained(loader, 5)  # an epoch and a part
    (folder / f"{rank.rank}.json").write_text(json.dumps(loader.state_dict()))
    loader.close()
    return seen


def resume(rank: Rank, folder: Path) -> list[Any]:
    states = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    loader = make_loader("rows", rank.rank, rank.world_size)
    loader.load_state_dict(evenstep.merge_states(states))
    assert loader.epoch == 1
    seen = trained(loader) + trained(loader)  # the rest, and an epoch
    loader.close()
    return seen


def drawn(ranks: list[list[Any]]) -> Counter[int]:
    return Counter(index for seen in ranks for step in seen for index in step["indices"])


def test_another_number_of_ranks_draws_what_is_left_once(tmp_path: Path) -> None:
    (states := tmp_path / "states").mkdir()
    before = run(begin, 2, states, folder=tmp_path / "one", within=60)
    after = run(resume, 4, states, folder=tmp_path / "two", within=60)
    assert [step["of_all"] for step in before[0]] == [step["of_all"] for step in before[1]]
    # One rank that was never interrupted draws the same samples in the same three epochs.
    whole = uninterrupted()
    assert drawn(before) + drawn(after) == drawn([whole])
    counts = Counter(index >= SIZES["code"] for index in drawn([whole]).elements())
    assert counts == {False: 252, True: 108}  # 0.7 and 0.3 of three times 120


def uninterrupted() -> list[Any]:
    loader = make_loader("rows", 0, 1)
    seen = [step for _ in range(3) for step in trained(loader)]
    loader.close()
    return seen


def other_names(rank: Rank) -> str:
    names = {"code": 0.5, ("chat" if rank.rank else "talk"): 0.5}
    mixture = evenstep.Mixture(dict.fromkeys(names, DATASETS["code"]), names)
    loader = evenstep.DataLoader(mixture, **OPTIONS)
    with pytest.raises(MismatchError) as caught:
        next(iter(loader.steps()))
    loader.close()
    return str(caught.value)


def test_ranks_resume_exactly_and_with_other_mixtures_are_told(tmp_path: Path) -> None:
    (first, second), told = run_all(
        check_exact, other_names, world_size=2, folder=tmp_path, within=200
    )
    assert first == second
    assert min(first.values()) >= 2
    assert all("names of a mixture" in said for said in told)


def test_a_mixture_is_wrapped_gives_its_order_and_logs_what_each_source_gave(
    tmp_path: Path,
) -> None:
    mixture = evenstep.Mixture(DATASETS, WEIGHTS, samples_per_epoch=120, samples_per_step=32)
    log = tmp_path / "steps.jsonl"
    theirs = TorchDataLoader(mixture, shuffle=True)
    loader = evenstep.wrap(theirs, group="local", step_log=log, **OPTIONS)
    made = make_loader("rows", 0, 1)
    steps = [step for _, step in loader.steps()]
    assert [step.indices for step in steps] == [step["indices"] for step in trained(made)]
    assert loader.epoch_samples == 120
    loader.close()
    made.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    logged = [line["sources"] for line in lines if "sources" in line]
    assert logged == [step.to_dict()["global_sources"] for step in steps]
    drawn_of = Counter(mixture.source_of(i) for step in steps for i in step.indices or ())
    assert {n: sum(each[n]["samples"] for each in logged) for n in DATASETS} == drawn_of
    sampler = WeightedRandomSampler([1.0] * len(mixture), 10)
    with pytest.raises(evenstep.ConfigurationError, match="a Mixture gives the order"):
        evenstep.DataLoader(mixture, sampler=sampler, group="local", **OPTIONS)


# Streams of two libraries


def row_of(name: str, index: int) -> dict[str, Any]:
    return {"input_ids": [1] * (3 + index % 7), "identity": index + 1000 * (name == "web")}


def from_tar(sample: dict[str, Any]) -> dict[str, Any]:
    return row_of("web", int(sample["txt"]))


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
    datasets = pytest.importorskip("datasets")
    webdataset = pytest.importorskip("webdataset")

    def make() -> evenstep.DataLoader:
        rows = datasets.Dataset.from_list([row_of("code", index) for index in range(60)])
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
