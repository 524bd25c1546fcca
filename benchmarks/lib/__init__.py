"""What benchmarks of several folders share.

report    spreads, tables, the machine, and the arguments that every benchmark has
epoch     figures of the groups of an epoch
corpus    tokenized samples
methods   four ways to form batches, behind one interface
train     an epoch of data-parallel training, timed
usage     memory and processor time of processes
ranks     rank processes, new ones for every measurement
"""
