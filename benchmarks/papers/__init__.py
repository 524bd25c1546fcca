"""Published tables and figures, each printed figure beside the one that evenstep gets.

book/       the pages docs/papers, made from chapters and stored outcomes
odb/        online dynamic batching
wlb/        WLB-LLM, workload-balanced 4D parallelism
overlord/   OVERLORD, the data loading service
pool_sort/  LengthPoolSortDataset
results/    what the entries gave when they ran last, as JSON
"""
