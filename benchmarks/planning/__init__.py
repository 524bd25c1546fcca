"""What plans cost and how even they are, from lengths alone.

overhead         seconds that a policy takes to plan, beside the released ODB package
quality          imbalance and padding of every policy, up to many ranks
packing_corpora  packers over real documents
scale            the exchange of messages with the number of ranks
dynamic_context  groups of ranks for documents, compared with fixed ones and ranks by length
rebalance        updates of rollouts, compared with a plain split and with verl's
state            size of a checkpoint's state, and seconds to make it
plan_digests     digests of all policies' plans, to compare before and after a change
"""
