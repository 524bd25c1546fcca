"""Policies that need all lengths of a data set: upper bounds for the policies that see a window.

```
policy                their base: a whole epoch is dealt to the ranks before it begins
fixed_size            batches of one size: `Sorted`, `LengthGrouped`
max_tokens            batches under a token budget: `MaxTokens`, `BucketedMaxTokens`
replay                the planned groups of one rank, cut from its stream of samples online
```
"""
