"""A packed sequence to context-parallel ranks (WLB-LLM, section 5, and past it)."""

from evenstep.plan.sharding.adaptive import METHODS, shard
from evenstep.plan.sharding.hybrid import shard_hybrid
from evenstep.plan.sharding.kernel_latency import KernelLatency, TileLatency
from evenstep.plan.sharding.per_document import shard_per_document
from evenstep.plan.sharding.per_sequence import shard_per_sequence
from evenstep.plan.sharding.sharding import Sharding

__all__ = [
    "METHODS",
    "KernelLatency",
    "Sharding",
    "TileLatency",
    "shard",
    "shard_hybrid",
    "shard_per_document",
    "shard_per_sequence",
]
