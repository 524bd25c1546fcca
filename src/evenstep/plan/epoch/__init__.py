"""Which samples of an epoch are left.

```
stream                for all ranks: one stream of positions, dealt out to any number of ranks
remaining             for one rank: what it has still to receive of its share
```
"""
