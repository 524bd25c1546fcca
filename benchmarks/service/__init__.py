"""The cluster service, as its planner decides and as Ray runs it.

imbalance   how uneven ranks are without and with balance; updates docs/service-figures.md
planner     seconds that the planner takes for a step, with the number of clients
memory      memory of reading many sources, beside one PyTorch DataLoader on every rank
throughput  samples per second and waiting, beside other readers of the same mixture
partitioning  how many loaders a layout needs, and how quick it is, beside layout_baselines;
            fewest_loaders is the optimum, and sleeping_sources are run
scaling     what a trainer waits while weights move, with loaders that follow and without
transport   what a message between two processes costs, over six roads
"""
