"""The WLB-LLM paper: a chapter of the book.

positions        Figure 3: lengths, by position in a window
algorithm_1      the paper's packer line by line, and thresholds of its queues
packing_run      packers over a stream of documents
table2           Table 2, on one rank and on several
sharded_layer    Figure 15 on real ranks
"""
