"""Data Constructor: builds the micro-batches of some data-parallel groups.

data_constructor.py  `DataConstructor`: the micro-batches of its clients
step_fetcher.py      plans and samples, fetched once for all clients
wanted_samples.py    what is fetched of a step
batch_builder.py     one bucket: collated, and cut for context-parallel ranks; and of subplans
"""
