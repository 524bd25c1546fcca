"""A `Sharding` in the form that each framework's own context parallelism takes.

Pure functions, one file per consumer; none imports the framework that it serves, but for PyTorch.
A kernel that takes any plan needs none of it: see `evenstep.plan.sharding.varlen`.
"""

from evenstep.context_parallel.frameworks.load_balancer import LoadBalancer
from evenstep.context_parallel.frameworks.megatron import to_megatron_shard
from evenstep.context_parallel.frameworks.transformer_engine import (
    thd_partitioned_indices,
    transformer_engine_arguments,
)

__all__ = [
    "LoadBalancer",
    "thd_partitioned_indices",
    "to_megatron_shard",
    "transformer_engine_arguments",
]
