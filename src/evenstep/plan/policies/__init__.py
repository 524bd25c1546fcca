"""Policies that see a window of samples.

```
even/                 equal cost on every rank in every step: the default
token_budget          groups of nearly equal padded size (ODB)
pool_sort             ranks that meet in length without messages about it
sequence_packing      whole samples laid end to end until the budget is full
fixed_batch           the same number of samples in every batch, as torch does
by_name               all of them, by name
```
"""
