"""The ODB paper: a chapter of the book.

paper         what the paper prints of shapes
shapes        Tables 13 and 14: samples, tokens and padding per update
endings       Tables 4 and 5: what an epoch leaves
audits        Appendix D, Table 6: groups, an empty rank
sweeps        Tables 2 and 17, Figure 2 and equation 5: budget, buffer, batch size
baselines     Sorted and packing, of Table 1
"""
