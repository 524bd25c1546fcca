"""LengthPoolSortDataset: a chapter of the book.

tables    sort and shuffle, pool sizes, workers
"""
