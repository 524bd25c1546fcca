"""The OVERLORD paper: a chapter of the book.

contents    its entries, in the paper's order
text        what the page says between the tables
end_to_end  Table 1 and Figure 12: all five models
"""
