"""Data Constructor: builds the micro-batches of some data-parallel groups.

data_constructor.py  `DataConstructor`: the micro-batches of its clients
step_fetcher.py      plans and samples, fetched once for all clients
batch_builder.py     one bucket: collated, and cut for context-parallel ranks; and of subplans
plan_totals.py       what each bucket trains on, from the plan
"""
