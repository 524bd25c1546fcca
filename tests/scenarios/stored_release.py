"""Files that a release of evenstep writes, to be kept, and read by all later ones.

    cd tests/scenarios; PYTHONPATH=.. python stored_release.py      # release-0.1, for 0.1

Two ranks take a few steps under each policy, and save; then they go on, and what they get is stored
beside their states. A service does the same over two small files, which are stored too, since
packages write the same rows in different bytes. Never change what a stored file was made from:
`Stored`, the policies, the job. Add to them instead, and store the next release.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from ranks import Rank, run
from torch.utils.data import Dataset, IterableDataset

import evenstep
import evenstep.service as es
from evenstep.context_parallel.latency import load_latency
from evenstep.cost import PaddedTokenCost
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.profile import load_calibration

COUNT = 90
TAKEN = 3
"""Steps before the state is saved."""
NEXT = 4
"""Steps after it that are stored."""
JSONL, PARQUET = "web.jsonl", "books.parquet"
PLANS, STEPS = "plans.jsonl", "steps.jsonl"
CALIBRATION, ATTENTION = "calibration.json", "attention.json"


def length_of(index: int) -> int:
    """Between 2 and 200, unevenly, and without a random generator that could change."""
    return 2 + (index * 7919 + 13) ** 2 % 97 + 100 * (index % 7 == 3)


class Stored(Dataset[Any]):
    """Samples of known lengths."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((length_of(index),), 1), "identity": index}


class Streamed(IterableDataset[Any]):
    """The share of one of two ranks."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        return (Stored()[index] for index in range(self._rank, COUNT, 2))


TOKENS = PaddedTokenCost()
"""What these policies counted by default when their states were stored."""
LOADERS: Mapping[str, Mapping[str, Any]] = {
    "Even": {"policy": evenstep.Even(300)},
    "Even, packed": {"policy": evenstep.Even(300, packed=True)},
    "Even, two steps in an update": {"policy": evenstep.Even(300), "accumulate": 2},
    "Even, window by tokens": {"policy": evenstep.Even(300), "memory": evenstep.Memory()},
    "TokenBudget": {"policy": evenstep.TokenBudget(300, cost=TOKENS)},
    "FixedBatch": {"policy": evenstep.FixedBatch(4, cost=TOKENS)},
    "PoolSort": {"policy": evenstep.PoolSort(4, cost=TOKENS)},
    "SequencePacking": {"policy": evenstep.SequencePacking(300, cost=TOKENS)},
    "WorkloadPacking": {"policy": evenstep.WorkloadPacking(220, micro_batches=2, max_tokens=300)},
    "a stream": {
        "policy": evenstep.TokenBudget(300, cost=TOKENS),
        "faults": evenstep.Faults(replay=True),
    },
}


def loader(name: str, rank: int, **options: Any) -> evenstep.DataLoader:
    given = {"memory": evenstep.Memory(buffer_size=18), **LOADERS[name], **options}
    policy = given["policy"]
    stream = name == "a stream"
    return evenstep.DataLoader(
        Streamed(rank) if stream else Stored(),
        collate_fn=evenstep.PackCollator() if policy.packed else evenstep.PadCollator(),
        shuffle=not stream,
        seed=4,
        **given,
    )


def identities(batch: Any) -> Any:
    """Of a batch, or of each of a step's micro-batches, in their order."""
    if isinstance(batch, list):
        return [identities(each) for each in batch]
    return [int(each) for each in batch["identity"]]


def trained(steps: Iterator[Any], count: int | None = None) -> list[Any]:
    """By step: what the trainer gets."""
    return [[identities(batch), step.ends_update] for batch, step in islice(steps, count)]


def saved_by(rank: Rank) -> dict[str, Any]:
    """By loader: its state, and what came before and after it."""
    found = {}
    for name in LOADERS:
        made = loader(name, rank.rank)
        steps = made.steps()
        before = trained(steps, TAKEN)
        found[name] = {"before": before, "state": made.state_dict(), "next": trained(steps, NEXT)}
        made.close()
    return found


def balanced(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("karmarkar_karp").plan()


def sample_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": [row["id"]] * row["length"]}


def job_over(folder: Path) -> es.Job:
    return es.Job(
        sources=[
            es.Source("web", str(folder / JSONL), transform=sample_of, weight=0.6, block=8),
            es.Source("books", str(folder / PARQUET), transform=sample_of, weight=0.4),
        ],
        mesh={"DP": 2},
        strategy=balanced,
        micro_batches=2,
        max_tokens=256,
        draws=es.DrawOptions(samples_per_step=12),
        memory=es.MemoryOptions(prefetch=1),
        seed=3,
    )


def taken(client: Any, count: int) -> list[Any]:
    """[steps] the samples of each micro-batch that a client gets, and their loss scales."""
    return [
        [[list(map(str, group)) for group in step.sample_ids], list(step.loss_scales)]
        for _, step in islice(client, count)
    ]


def write_sources(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [{"id": index, "length": length_of(index)} for index in range(2 * COUNT)]
    (folder / JSONL).write_text("".join(json.dumps(row) + "\n" for row in rows[:COUNT]))
    table = pyarrow.Table.from_pylist(rows[COUNT:])
    parquet.write_table(table, folder / PARQUET, row_group_size=16)


def write_service(folder: Path) -> None:
    """A store and logs, of a service that saved, and went on."""
    write_sources(folder)
    job, logs = job_over(folder), es.LogOptions(plans=folder / PLANS)
    with es.start(job, backend="local", store=folder / "store", logs=logs) as service:
        clients = [service.client(rank) for rank in range(2)]
        for client in clients:
            taken(client, TAKEN)
        state = clients[0].common_state()
        following = [taken(client, NEXT) for client in clients]
    write(folder / "service.json", {"state": state, "next": following})


def told_by(folder: Path) -> dict[str, Any]:
    """By file: what it says."""
    return {
        PLANS: tell("service", "plan", "--log", folder / PLANS, "--step", TAKEN),
        STEPS: tell("report", folder / STEPS),
        CALIBRATION: plain(load_calibration(folder / CALIBRATION)),
        ATTENTION: plain(load_latency(folder / ATTENTION)),
    }


def plain(made: Any) -> dict[str, Any]:
    """A data class as JSON has it."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(made)))
    return values


def write_calibrations(folder: Path) -> None:
    measure = ("profile", "--device", "cpu", "--max-length", 1024, "--seconds", 60)
    model = ("--layers", 2, "--hidden-size", 32, "--heads", 2, "--ffn-size", 64)
    tell(*measure, *model, "--out", folder / CALIBRATION)
    kernel = ("--attention", "--quick", "--heads", 2, "--head-size", 16)
    tell(*measure, *kernel, "--out", folder / ATTENTION)


def tell(*words: Any) -> dict[str, Any]:
    """What a command says."""
    command = [sys.executable, "-m", "evenstep", *map(str, words), "--json"]
    answer: dict[str, Any] = json.loads(subprocess.check_output(command))
    return answer


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def folder_of(release: str) -> Path:
    return Path(__file__).with_name(f"release-{release}")


def main() -> None:
    folder = folder_of(".".join(evenstep.__version__.split(".")[:2]))
    if folder.exists():
        sys.exit(f"{folder} is there already; a release's files are written once")
    folder.mkdir()
    try:
        with tempfile.TemporaryDirectory() as own:
            write(folder / "loaders.json", run(saved_by, 2, folder=Path(own), within=120))
        write_service(folder)
        write_calibrations(folder)
        trained(loader("Even", 0, group="local", step_log=folder / STEPS).steps())
        write(folder / "told.json", told_by(folder))
    except BaseException:
        shutil.rmtree(folder)
        raise
    print(f"wrote {folder}")


if __name__ == "__main__":
    # What functions are called must not hang on how this file is run.
    from stored_release import main as run_main

    run_main()
