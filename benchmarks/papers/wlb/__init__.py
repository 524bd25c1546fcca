"""The WLB-LLM paper: a chapter of the book.

latency_spread   Figures 1a and 4a: how unlike the ranks of a job are
positions        Figure 3: lengths, by position in a window
algorithm_1      the paper's packer line by line; thresholds of its queues; queues has rows of
                 Table 2
ranks            the same figures of evenstep on several ranks
window_packing   full windows: cut from documents laid end to end, or filled greedily
exact_packing    the best packing, by a solver; tight_fill is where it begins; solver has Table 2's
                 rows of it
packing_run      packers over a stream of documents; packing_result
packing_windows  Figures 6 and 16: held-out loss by the window of packing
operations       Figure 7, measured on this device
sweep            Figures 12 and 13 under other assumptions
sharded_layer    Figure 15 on real ranks
table2           Table 2, without the solver's rows
figures          Table 1, and Figures 12 to 15 as predictions; figures_run has the jobs
pipeline_run     one step on a pipeline of stages, and which rank gets which micro-batch
step_time_model  the time of a step under 4D parallelism; cluster_assumptions
"""
