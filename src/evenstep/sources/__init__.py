"""Where samples come from: datasets, and what wraps them."""

from evenstep.sources.pool_sort_dataset import PoolSortDataset

__all__ = ["PoolSortDataset"]
