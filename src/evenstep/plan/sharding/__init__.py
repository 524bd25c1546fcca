"""How a packed sequence is cut over context-parallel ranks (WLB-LLM, section 5, and beyond it).

In reading order, with the section of the paper that each file follows:

```
sharding           `Sharding`: for each rank a list of fragments of documents
chunks             2C chunks of the sequence, two to each rank of C,           (3.1)
                   or of every document, without padding                       (5.1)
attention_tiles    pairs and tiles that attention computes for a fragment      (5.2)
kernel_latency     what predicts how long a kernel takes for fragments         (5.2, 5.3)
adaptive           `shard`: the method whose slowest rank is fastest           (5.3)
hybrid             equal tokens and cost with few cuts                         (not in the paper)
varlen             a rank's fragments as one call of a variable-length kernel  (5.3)
```
"""

from evenstep.plan.sharding.adaptive import METHODS, shard
from evenstep.plan.sharding.chunks import shard_per_document, shard_per_sequence
from evenstep.plan.sharding.kernel_latency import KernelLatency, TileLatency
from evenstep.plan.sharding.sharding import Sharding

__all__ = [
    "METHODS",
    "KernelLatency",
    "Sharding",
    "TileLatency",
    "shard",
    "shard_per_document",
    "shard_per_sequence",
]
