"""This context-parallel rank's shards of a step's micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evenstep.batch.labels import IGNORE_INDEX
from evenstep.batch.pack import PackCollator
from evenstep.context_parallel.batch_shards import document_lengths, shard_batch
from evenstep.loader.batcher.spec import LoaderSpec

__all__ = ["own_shards"]


def own_shards(spec: LoaderSpec, batches: Sequence[Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """Cuts this rank's shard out of each micro-batch.

    Args:
        batches: whole micro-batches, as `PackCollator` makes them.

    Returns:
        The shards, and the supervised tokens in each.

    Raises:
        CollateError: a collate function of another kind made a batch that cannot be cut.
    """
    collate = spec.collate_fn
    options: dict[str, Any] = {}
    if isinstance(collate, PackCollator):
        options["labels_shifted"] = not collate.mask_first_label
        options["per_sample_fields"] = collate.per_sample_fields
    shards = []
    for batch in batches:
        sharding = spec.policy.shard(document_lengths(batch))
        shards.append(shard_batch(batch, sharding, spec.context_rank, **options))
    supervised = [int(np.count_nonzero(s["shift_labels"] != IGNORE_INDEX)) for s in shards]
    return shards, supervised
