"""The OVERLORD paper: a chapter of the book.

sources        Figures 4 and 5: the memory and time of local sources
single_images  Algorithm 2: the images of a sample apart
end_to_end     Table 1 and Figure 12: all five models
constructors   Figure 14: with and without Data Constructors
"""
