"""Iterable datasets that can be divided are dealt to ranks and their workers: each sample comes
once over all of them, in equally many steps, also after a resume. What a user has divided stays."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import Rank, run
from torch.utils.data import IterableDataset

import evenstep

datasets = pytest.importorskip("datasets")
distributed = pytest.importorskip("datasets.distributed")
webdataset = pytest.importorskip("webdataset")
COUNT = 90


def sample(identity: int) -> dict[str, Any]:
    return {"input_ids": [identity + 1] * (1 + identity % 13), "identity": identity}


def streamed(shards: int) -> Any:
    rows = datasets.Dataset.from_list(list(map(sample, range(COUNT))))
    return rows.to_iterable_dataset(num_shards=shards)


class Dealing(IterableDataset):  # type: ignore[type-arg]
    """Deals its samples out by itself, and says that it has all of them."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a share is read")

    def share_of_worker(self, worker: int, workers: int) -> Iterator[Any]:
        return map(sample, range(worker, COUNT, workers))


def of_tar(files: dict[str, Any]) -> dict[str, Any]:
    return sample(int(files["txt"]))


def tars(folder: Path, shards: int, **options: Any) -> Any:
    urls = [str(folder / f"{shards}-{shard}.tar") for shard in range(shards)]
    given = {"nodesplitter": webdataset.split_by_node, "shardshuffle": False, "empty_check": False}
    return webdataset.WebDataset(urls, **{**given, **options}).decode().map(of_tar)


def write_tars(folder: Path, shards: int) -> None:
    for shard in range(shards):
        with tarfile.open(folder / f"{shards}-{shard}.tar", "w") as archive:
            for identity in range(shard, COUNT, shards):
                content = str(identity).encode()
                member = tarfile.TarInfo(f"{identity:03}.txt")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def kinds(rank: Rank, folder: Path) -> dict[str, Any]:
    place = {"rank": rank.rank, "world_size": rank.world_size}
    return {
        "streamed, uneven": streamed(5),
        "streamed, shuffled": streamed(6).shuffle(seed=3, buffer_size=20),
        "streamed, split": distributed.split_dataset_by_node(streamed(4), **place),
        "streamed, sharded": streamed(4).shard(num_shards=2, index=rank.rank),
        "tars": tars(folder, 5),
        "method": Dealing(),
    }


WITHOUT_STATE = ("tars", "method")
RESUMED = ("streamed, uneven", "streamed, shuffled", "tars", "method")


def train(rank: Rank, folder: Path) -> dict[str, Any]:
    """[runs] what was in each step: of an epoch, and of one that is resumed in its middle."""
    seen = {}
    for kind in kinds(rank, folder):
        print(kind, flush=True)  # so that the log of a rank says where it hangs

        def make(kind: str = kind) -> evenstep.DataLoader:
            return evenstep.DataLoader(
                kinds(rank, folder)[kind],
                policy=evenstep.Even(64),
                num_workers=2,
                multiprocessing_context="fork",
                memory=evenstep.Memory(buffer_size=8, chunk_size=3),
                faults=evenstep.Faults(replay=kind in WITHOUT_STATE),
            )

        loader, steps, state = make(), [], None
        for batch, step in loader.steps():
            steps.append([] if step.filler else batch["identity"].tolist())
            if len(steps) == 4:
                state = json.loads(json.dumps(loader.state_dict()))
        assert loader.epoch_samples is None
        loader.close()
        seen[kind] = [steps]
        if kind in RESUMED:
            again = make()
            again.load_state_dict(state)
            rest = [[] if s.filler else b["identity"].tolist() for b, s in again.steps()]
            again.close()
            seen[kind].append(steps[:4] + rest)
    return seen


def test_each_sample_comes_once_over_ranks_and_workers(tmp_path: Path) -> None:
    write_tars(tmp_path, 5)
    ranks = run(train, 2, tmp_path, folder=tmp_path, within=150)
    for kind in ranks[0]:
        (whole, *resumed), (other_whole, *other_resumed) = (rank[kind] for rank in ranks)
        for again in zip(resumed, other_resumed):
            assert (whole, other_whole) == again, kind
        assert len(whole) == len(other_whole), kind
        counted = Counter(itertools.chain(*whole, *other_whole))
        assert counted == Counter(range(COUNT)), (kind, counted)
