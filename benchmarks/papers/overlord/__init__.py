"""The OVERLORD paper: a chapter of the book.

end_to_end     Figure 12: gains of all five models
"""
