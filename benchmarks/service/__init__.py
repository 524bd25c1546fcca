"""The cluster service, as its planner decides and as Ray runs it.

imbalance     how uneven ranks are without and with balance; runs has the cases, corpora the data
planner       seconds that the planner takes for a step, with the number of clients
memory        memory of reading many sources, beside one PyTorch DataLoader on every rank
throughput    samples per second and waiting, beside torch's DataLoader
reading       what opening sources costs, without and with an index, and what is read in all
partitioning  how many loaders a layout needs, beside layout_baselines
scaling       what a trainer waits while weights move, with loaders that follow and without
seen          size of the record of what was seen, and time to write and query it
"""
