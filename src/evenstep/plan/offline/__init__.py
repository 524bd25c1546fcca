"""Policies that need all lengths of a data set: upper bounds and yardsticks for the others.

`policy` is their base, `fixed_size` and `max_tokens` form the groups, and `replay` runs the planned
groups of one rank online.
"""
