"""Items to a fixed number of bins: what balances ranks, micro-batches and queues.

multiway              `partition`: greedy placement, improved by local search
items                 checked arguments, costs as whole numbers
greedy                each item to the least loaded bin with room (LPT)
karmarkar_karp        partitions merged, the least even first
local_search          moves and swaps that lower the largest load
best_fit              the fewest bins under a token capacity
"""

from evenstep.plan.partition.multiway import Partition, bins_needed, partition

__all__ = ["Partition", "bins_needed", "partition"]
