"""Where samples come from: datasets, and what wraps them."""

from evenstep.sources.cut_documents import CutDocuments
from evenstep.sources.pool_sort_dataset import PoolSortDataset

__all__ = ["CutDocuments", "PoolSortDataset"]
