"""The sharding of a sequence whose slowest rank is predicted to be fastest.

This is WLB-LLM's adaptive sharding (section 5.3), with one method more to choose from. All ranks of
a step wait for the slowest, so only its latency counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.chunks import shard_per_document, shard_per_sequence
from evenstep.plan.sharding.hybrid import shard_equally
from evenstep.plan.sharding.kernel_latency import TILES, KernelLatency
from evenstep.plan.sharding.sharding import Sharding, check_documents

METHODS = ("per-sequence", "per-document", "hybrid")

_PLAIN = {"per-sequence": shard_per_sequence, "per-document": shard_per_document}


def shard(
    lengths: npt.ArrayLike,
    ranks: int,
    *,
    latency: KernelLatency = TILES,
    methods: Sequence[str] = METHODS,
) -> Sharding:
    """Shards a sequence by the method whose slowest rank has the least predicted latency.

    Among equally fast shardings the one with the fewest fragments is taken, and among those the one
    of the first method. If hybrid sharding adopts the sharding of another of `methods`, it counts
    as that method's.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.
        latency: what predicts.
        methods: methods to choose from, some of `METHODS`.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks; no method, one unknown or
            one twice; or a latency that is not a number.
    """
    check_methods(methods)
    documents = check_documents(lengths, ranks)
    candidates: list[Sharding] = []
    for method in methods:
        if method in _PLAIN:
            candidates.append(_PLAIN[method](documents, ranks))
            continue
        candidates.append(shard_equally(documents, ranks, latency=latency))
        # Hybrid sharding is never worse than the others; those in `methods` compete by themselves.
        others = (make for name, make in _PLAIN.items() if name not in methods)
        candidates += [replace(make(documents, ranks), method="hybrid") for make in others]
    return _fastest(candidates, latency)


def check_methods(methods: Sequence[str]) -> None:
    """Raises `ConfigurationError` unless `methods` are some of `METHODS`, each once."""
    known = not isinstance(methods, str) and set(methods) <= set(METHODS)
    if not methods or not known or len(set(methods)) < len(methods):
        raise ConfigurationError(
            f"methods={methods!r} must be one or more of {', '.join(METHODS)}, each once"
        )


def _fastest(candidates: Sequence[Sharding], latency: KernelLatency) -> Sharding:
    """The candidate whose slowest rank is fastest; among equals that with the fewest fragments, and
    among those the first."""
    # One call for all candidates: a call may cost more by itself than its fragments do.
    queries = np.concatenate([each.end - each.start for each in candidates])
    keys = np.concatenate([each.end for each in candidates])
    fragments = np.concatenate([each.fragments for each in candidates])  # [candidates x ranks]
    of_ranks = np.zeros(len(fragments))
    np.add.at(of_ranks, np.arange(len(fragments)).repeat(fragments), latency(queries, keys))
    slowest = of_ranks.reshape(len(candidates), -1).max(axis=1)  # [candidates]
    if not np.isfinite(slowest).all():
        raise ConfigurationError(
            f"latency={latency!r} predicts {slowest.tolist()} for the slowest ranks; it must "
            "return a finite number for every fragment"
        )
    order = np.lexsort(([len(each.document) for each in candidates], slowest))
    return candidates[int(order[0])]
