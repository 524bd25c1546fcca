"""Groups of samples.

```
groups                `Groups`: two flat arrays
token_budget_groups   a window cut into padded groups under a token budget
spread                groups of like cost dealt out so that every step mixes lengths
alignment             every rank brought to the same number of groups
```
"""
