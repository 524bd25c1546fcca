"""The OVERLORD paper: a chapter of the book.

end_to_end     Table 1 and Figure 12: all five models
constructors   Figure 14: with and without Data Constructors
"""
