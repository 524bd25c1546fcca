"""Published tables and figures, each printed figure beside the one that evenstep gets.

odb/  tables of the paper on online dynamic batching
wlb/  table 2 and figures 12 to 15 of the WLB-LLM paper
"""
