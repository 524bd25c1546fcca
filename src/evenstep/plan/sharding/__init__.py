"""A packed sequence to context-parallel ranks (WLB-LLM, section 5, and past it)."""

from evenstep.plan.sharding.per_document import shard_per_document
from evenstep.plan.sharding.per_sequence import shard_per_sequence
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["Sharding", "shard_per_document", "shard_per_sequence"]
