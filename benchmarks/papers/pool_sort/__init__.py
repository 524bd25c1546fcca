"""LengthPoolSortDataset: a chapter of the book, in `contents`."""
