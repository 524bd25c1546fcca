"""The ODB paper: a chapter of the book.

contents  its entries, in the paper's order
text      what the page says between the tables
paper     what the paper prints
shapes    Tables 13 and 14: samples, tokens and padding per update
endings   Tables 4 and 5: what an epoch leaves, and that nothing is lost
"""
