"""The sharding of a sequence whose slowest rank is predicted to be fastest.

This is WLB-LLM's adaptive sharding (section 5.3), with one method more to choose from. All ranks of
a step wait for the slowest, so only its latency counts.

Per-sequence and per-document sharding cut 2C chunks of the sequence, or of every document. Rank r
of C holds chunks r and 2C - 1 - r, one from either end, so that what is cut into these chunks costs
the same on all ranks if it is a single document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.hybrid import shard_equally
from evenstep.plan.sharding.sharding import TILES, KernelLatency, Sharding, check_documents


def _head_tail(ranks: int) -> Int64Array:
    """[2 x ranks] the rank that owns each chunk: 0, 1, ..., C - 1, C - 1, ..., 1, 0."""
    half = np.arange(ranks)
    return np.concatenate((half, half[::-1]))


def shard_per_sequence(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Gives each rank two chunks of the sequence, regardless of documents (WLB-LLM, section 3.1).

    Documents may make costs differ: in the worst case, where one document of a C-th of the sequence
    lies on both middle chunks, one rank has all of its cost, C times the mean.

    If 2 x `ranks` does not divide the sequence, chunks differ by at most one token, and so do
    ranks.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    size, left = divmod(int(documents.sum()), 2 * ranks)
    # The first C tokens left over go to different ranks, and so do the rest.
    longer = np.arange(2 * ranks) < left  # [chunks]
    bounds = prefix_sums(size + longer)
    return Sharding.of_chunks(documents, bounds, _head_tail(ranks), ranks, "per-sequence")


def shard_per_document(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Gives each rank two chunks of every document, none of them padded (WLB-LLM, section 5.1).

    A document of L tokens has L mod 2C more than 2C equal chunks. Each of these makes one chunk
    longer by a token, chunk after chunk, and the next document continues where the last one
    stopped. So chunks stay contiguous, whereas single tokens given to ranks in turn would each be a
    fragment; all ranks have equally many tokens if C divides the sequence; and their costs differ
    by less than those of single tokens.

    Documents of 5 and 6 tokens on two ranks are cut into chunks of 2, 1, 1, 1 and 1, 2, 2, 1
    tokens: the token left over in the first lengthens chunk 0, the two in the second chunks 1
    and 2. Chunks 0 and 3 go to rank 0, chunks 1 and 2 to rank 1: 5 and 6 tokens.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence. Documents of fewer
            than 2 x `ranks` tokens lie on some of the ranks only.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    chunks = 2 * ranks
    size, left = np.divmod(documents, chunks)  # [documents]
    first = (left.cumsum() - left) % chunks  # [documents] the first chunk that is longer
    longer = (np.arange(chunks) - first[:, None]) % chunks < left[:, None]  # [documents, chunks]
    bounds = prefix_sums((size[:, None] + longer).ravel())
    owners = np.tile(_head_tail(ranks), len(documents))
    return Sharding.of_chunks(documents, bounds, owners, ranks, "per-document")


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
