"""Context parallelism at run time: one packed sequence shared by several ranks.

`evenstep.plan.sharding` decides how a sequence is cut. This package cuts the batch, runs the
attention, and hands both to frameworks. The loader's `batcher/batch_assembly` calls `shard_batch`.
In reading order:

```
batch_shards         a packed row to what one rank trains on, and back: `document_lengths`,
                     `shard_batch`, `unshard`
prepared_sharding    `prepare`: what attention needs, once per micro-batch: a `PreparedSharding`;
                     all ranks hold the same, or all raise
  collectives        what ranks send each other
causal_attention     `attention`, over the fragments of any sharding
kernels              back ends of attention, and which one runs: FlashAttention, SDPA
  layout             where the keys lie that a rank needs; `varlen_arguments`
frameworks           a sharding for the context parallelism of Megatron-LM
```

Nothing here is imported before it is used, so that predicting needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.context_parallel.batch_shards import document_lengths as document_lengths
    from evenstep.context_parallel.batch_shards import shard_batch as shard_batch
    from evenstep.context_parallel.batch_shards import unshard as unshard
    from evenstep.context_parallel.causal_attention import attention as attention
    from evenstep.context_parallel.prepared_sharding import PreparedSharding as PreparedSharding
    from evenstep.context_parallel.prepared_sharding import prepare as prepare

__getattr__, __dir__ = lazy_names(__name__)
