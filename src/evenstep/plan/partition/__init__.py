"""Weighted items to a fixed number of bins: what balances ranks, micro-batches and queues."""

from evenstep.plan.partition.bounds import lower_bound
from evenstep.plan.partition.multiway import METHODS, Partition, bins_needed, partition

__all__ = ["METHODS", "Partition", "bins_needed", "lower_bound", "partition"]
