"""The WLB-LLM paper: a chapter of the book.

contents  its entries, in the paper's order
table2    writes docs/wlb-table2.md
figures   writes docs/wlb-figures.md
"""
