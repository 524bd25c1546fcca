"""Which samples of an epoch are left.

```
stream                for all ranks: one stream of positions, dealt out to any number of ranks
dealing               which rank draws the stream's next samples, where that is decided on demand
remaining             for one rank: what it has still to receive of its share
```
"""
