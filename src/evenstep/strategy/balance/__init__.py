"""How the samples of a step are balanced: within a micro-batch, between buckets, or both at once.

levels                from samples to an `Assignment`, by the levels that `DGraph.balance` names
micro_batches         samples to micro-batches, or to buckets and micro-batches at once
methods               the methods by name, and those that a user brings; add a method here; the
                      cost of each sample
"""
