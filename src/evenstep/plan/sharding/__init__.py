"""How a packed sequence is cut over context-parallel ranks (WLB-LLM, section 5, and beyond it).

In reading order, with the section of the paper that each file follows:

```
sharding           `Sharding`: for each rank a list of fragments of documents;
                   pairs and tiles that attention computes for a fragment,     (5.2)
                   and what predicts how long a kernel takes for them          (5.3)
adaptive           2C chunks of the sequence, two to each rank of C,           (3.1)
                   or of every document, without padding;                      (5.1)
                   `shard`: the method whose slowest rank is fastest           (5.3)
hybrid             equal tokens and cost with few cuts                         (not in the paper)
```
"""

from evenstep.plan.sharding.adaptive import METHODS, shard, shard_per_document, shard_per_sequence
from evenstep.plan.sharding.sharding import KernelLatency, Sharding, TileLatency

__all__ = [
    "METHODS",
    "KernelLatency",
    "Sharding",
    "TileLatency",
    "shard",
    "shard_per_document",
    "shard_per_sequence",
]
