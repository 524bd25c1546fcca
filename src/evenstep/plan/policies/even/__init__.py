"""`Even`, the default policy: equal cost on every rank in every step.

```
even                  the options, and the round of packed groups
padded_round          the round of padded groups: the oldest runs of all ranks are the targets
padded_runs           padded groups that cost their target; padded_runs_numba: the same, compiled
padded_end            all that is left at the end, in padded groups
fill_packed           packed groups that are full and cost their target
drain_packed          all that is left at the end, in packed groups
```
"""

from evenstep.plan.policies.even.even import Even

__all__ = ["Even"]
