"""The ODB paper: a chapter of the book.

paper         what the paper prints of shapes
shapes        Tables 13 and 14: samples, tokens and padding per update
endings       Tables 4, 5 and 21: what an epoch leaves, and at what price
audits        Corollary 1, Tables 6 and 10: quotas, an empty rank, lengths
sweeps        Tables 2 and 17, Figure 2 and equation 5: budget, buffer, batch size
baselines     Sorted and packing, of Table 1
scaling       Table 18: losses that are scaled
waits         Tables 3, 19 and 20: the loader's processes beside a trainer that sleeps
length_cache  Table 12: what a cache of lengths costs
"""
