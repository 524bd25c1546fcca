"""A `Sharding` in the format of each framework's own context parallelism.

```
transformer_engine    Transformer Engine's cut of documents, arguments of its attention, and
                      Megatron-LM's batch on a context-parallel rank
load_balancer         PyTorch's context parallelism
```

Pure functions; none imports the framework that it serves, except PyTorch. A kernel that takes any
sharding needs none of it: see `evenstep.plan.sharding.varlen`.
"""

from evenstep.context_parallel.frameworks.load_balancer import LoadBalancer
from evenstep.context_parallel.frameworks.transformer_engine import (
    thd_partitioned_indices,
    to_megatron_shard,
    transformer_engine_arguments,
)

__all__ = [
    "LoadBalancer",
    "thd_partitioned_indices",
    "to_megatron_shard",
    "transformer_engine_arguments",
]
