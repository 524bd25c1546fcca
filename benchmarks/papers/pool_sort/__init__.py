"""LengthPoolSortDataset: a chapter of the book.

contents  its entries
text      what the page says between the tables
tables    sort and shuffle, pool sizes, workers
"""
