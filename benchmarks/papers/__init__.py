"""Published tables and figures, each printed figure beside the one that evenstep gets.

book        runs entries and puts what they find into docs/papers.md
outcome     what an entry finds: tables
odb/        online dynamic batching
wlb/        WLB-LLM, workload-balanced 4D parallelism
overlord/   OVERLORD, the data loading service
pool_sort/  LengthPoolSortDataset
"""
