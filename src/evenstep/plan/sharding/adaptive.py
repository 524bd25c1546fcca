"""Which way of sharding suits a sequence: the one with the fastest slowest rank, as predicted.

The choice is WLB-LLM's adaptive sharding (section 5.3), with one plan more to choose from. All
ranks of a step wait for the slowest, so nothing but its latency counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy.typing as npt

from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.fastest import fastest
from evenstep.plan.sharding.hybrid import shard_equally
from evenstep.plan.sharding.kernel_latency import TILES, KernelLatency
from evenstep.plan.sharding.per_document import shard_per_document
from evenstep.plan.sharding.per_sequence import shard_per_sequence
from evenstep.plan.sharding.sharding import Sharding, check_documents

__all__ = ["METHODS", "check_methods", "shard"]

METHODS = ("per-sequence", "per-document", "hybrid")

_PLAIN = {"per-sequence": shard_per_sequence, "per-document": shard_per_document}


def shard(
    lengths: npt.ArrayLike,
    ranks: int,
    *,
    latency: KernelLatency = TILES,
    methods: Sequence[str] = METHODS,
) -> Sharding:
    """The plan of the method whose slowest rank has the least predicted latency.

    Of plans that are equally fast the one with the fewest fragments is taken, and of these the one
    of the first method. A plan that hybrid sharding takes over from another of `methods` counts as
    that one's.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.
        latency: what predicts.
        methods: what to choose from: some of `METHODS`.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks; no method, one unknown or
            one twice; or a latency that is not a number.
    """
    check_methods(methods)
    documents = check_documents(lengths, ranks)
    plans: list[Sharding] = []
    for method in methods:
        if method in _PLAIN:
            plans.append(_PLAIN[method](documents, ranks))
            continue
        plans.append(shard_equally(documents, ranks, latency=latency))
        # A hybrid plan is never worse than the others'; those in question stand for themselves.
        others = (make for name, make in _PLAIN.items() if name not in methods)
        plans += [replace(make(documents, ranks), method="hybrid") for make in others]
    return fastest(plans, latency)


def check_methods(methods: Sequence[str]) -> None:
    """Raises `ConfigurationError` where `methods` are not some of `METHODS`, each once."""
    known = not isinstance(methods, str) and set(methods) <= set(METHODS)
    if not methods or not known or len(set(methods)) < len(methods):
        raise ConfigurationError(
            f"methods={methods!r} must be one or more of {', '.join(METHODS)}, each once"
        )
