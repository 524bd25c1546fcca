"""torchdata.nodes, as the guide to migrate from torch.utils.data has it: a sampler, batches of
indices, a mapper in processes, a prefetcher; a weighted sampler over a node of each source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler
from torchdata.nodes import (
    BaseNode,
    Batcher,
    Loader,
    MapStyleWrapper,
    MultiNodeWeightedSampler,
    ParallelMapper,
    Prefetcher,
    SamplerWrapper,
)

from benchmarks.peers.adapters.torch import Pictures, Texts
from benchmarks.peers.work import SOURCES, Sample, Work, pad, stack, texts, tokenize

STATE = "state_dict", "load_state_dict"


class MapAndCollate:
    def __init__(self, get: Callable[[Any], Sample], collate: Callable[[Any], Any]) -> None:
        self._get, self._collate = get, collate

    def __call__(self, items: Sequence[Any]) -> Any:
        return self._collate([self._get(item) for item in items])


def _loader(work: Work, node: BaseNode[Any], get: Any, collate: Any) -> Loader[Any]:
    node = Batcher(node, work.batch_size, drop_last=False)
    node = ParallelMapper(
        node, MapAndCollate(get, collate), num_workers=work.workers, method="process"
    )
    return Loader(Prefetcher(node, prefetch_factor=2 * work.workers))


def _epoch(work: Work, dataset: Any, collate: Any) -> Loader[Any]:
    sampler: Any = DistributedSampler(
        dataset, num_replicas=work.ranks, rank=work.rank, shuffle=True, seed=work.seed
    )
    return _loader(work, SamplerWrapper(sampler), dataset.__getitem__, collate)


def padded(work: Work) -> Loader[Any]:
    return _epoch(work, Texts(texts(work.folder)), pad)


def images(work: Work) -> Loader[Any]:
    return _epoch(work, Pictures(work.folder), stack)


def mixture(work: Work) -> Loader[Any]:
    nodes, weights = {}, {}
    for source, weight in zip(range(SOURCES), work.weights()):
        rows: Any = list(texts(work.folder, source))
        nodes[str(source)] = MapStyleWrapper(rows, RandomSampler(rows))
        weights[str(source)] = weight
    mixed = MultiNodeWeightedSampler(
        nodes, weights, rank=work.rank, world_size=work.ranks, seed=work.seed
    )
    return _loader(work, mixed, lambda row: tokenize(*row), pad)
