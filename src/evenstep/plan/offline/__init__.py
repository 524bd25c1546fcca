"""Policies that need all lengths of a data set: upper bounds for the policies that see a window.

```
policies              `Sorted`, `LengthGrouped`, `MaxTokens` and `BucketedMaxTokens`
replay                the planned groups of one rank, cut from its stream of samples
```
"""
