"""Items to a fixed number of bins: what balances ranks, micro-batches and queues.

bins                  `partition`: greedy placement, improved by local search; the fewest bins under
                      a token capacity
items                 checked arguments, costs as whole numbers
greedy                each item to the least loaded bin with room (LPT)
karmarkar_karp        partitions merged, the least even first
local_search          moves and swaps that lower the largest load
"""

from evenstep.plan.partition.bins import bins_needed, partition

__all__ = ["bins_needed", "partition"]
