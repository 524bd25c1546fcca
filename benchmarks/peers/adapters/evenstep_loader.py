"""evenstep's loader, as README.md has it: the dataset of torch's loader, and a policy."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

import evenstep
from benchmarks.peers.adapters.torch import Pictures, Texts, mixed
from benchmarks.peers.work import Work, pad, stack, texts

STATE = "state_dict", "load_state_dict"


def _loader(work: Work, dataset: Any, policy: Any, collate: Any, **more: Any) -> Any:
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    return evenstep.DataLoader(
        dataset, policy=policy, num_workers=work.workers, collate_fn=collate, **more
    )


def padded(work: Work) -> Any:
    policy = evenstep.Even(max_tokens=work.max_tokens)
    return _loader(work, Texts(texts(work.folder)), policy, pad, shuffle=True)


def images(work: Work) -> Any:
    policy = evenstep.FixedBatch(work.batch_size)
    return _loader(work, Pictures(work.folder), policy, stack, shuffle=True)


def mixture(work: Work) -> Any:
    dataset, sampler = mixed(work)
    return _loader(work, dataset, evenstep.Even(max_tokens=work.max_tokens), pad, sampler=sampler)


def close(loader: Any) -> None:
    loader.close()
