"""A rank of a job on a system that has none of Linux's parts: see `without_linux`. A script of
`test_platforms`."""

import without_linux  # noqa: F401  # isort: skip

import hashlib
import json
import multiprocessing
import os
import signal
import sys
from typing import Any

import torch.distributed as dist

import evenstep
from documents import Documents
from loader_options import grouped


class Large(Documents):
    """Documents that take more than a pipe holds."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "text": [f"{index} {i}" for i in range(2000)]}


def loader_with(dataset: Any = None, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Large(80) if dataset is None else dataset,
        policy=evenstep.Even(256),
        shuffle=True,
        **grouped(buffer_size=32, prefetch=1, **options),
    )


def batches(loader: evenstep.DataLoader) -> list[list[Any]]:
    """The samples of each batch of the next epoch, and a digest of its tokens."""
    return [
        [*step.indices, hashlib.sha256(batch["input_ids"].numpy().tobytes()).hexdigest()]
        for batch, step in loader.steps()
    ]


def error_of(call: Any) -> str:
    try:
        call()
    except evenstep.EvenstepError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(rank: int, rendezvous: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    said: dict[str, Any] = {"method": multiprocessing.get_start_method()}

    spawned = loader_with(num_workers=1, persistent_workers=True)
    left = spawned.steps()
    next(left)
    left.close()  # while its batcher sends the next batches
    spawned.set_epoch(3)
    said["batches"] = batches(spawned)
    alone = spawned.steps()
    next(alone)
    dist.barrier()
    (batcher,) = multiprocessing.active_children()
    batcher.kill()
    said["killed batcher"] = error_of(lambda: list(alone))
    spawned.close()
    said["children"] = len(multiprocessing.active_children())

    local = loader_with(Documents(40), num_workers=1, group="local", collate_fn=lambda samples: 0)
    said["lambda"] = error_of(local.steps)
    local.close()

    dist.barrier()
    threads = loader_with(warn_after=None)
    threads.set_epoch(3)
    said["batches of threads"] = batches(threads)
    steps = threads.steps()
    next(steps)
    if rank == 1:
        print(json.dumps(said), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    said["killed rank"] = error_of(lambda: list(steps))
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
