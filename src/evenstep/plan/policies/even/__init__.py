"""`Even`, the default policy: equal cost on every rank in every step.

```
even                  the round: all ranks' quantiles of costs are the steps' targets
match_padded          padded groups that cost their target
fill_packed           packed groups that are full and cost their target
drain_packed          all that is left at the end, in packed groups
```
"""

from evenstep.plan.policies.even.even import Even

__all__ = ["Even"]
