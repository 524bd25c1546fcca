"""Sequences that are already there to ranks and micro-batches: rollouts, or any batch in memory.

In reading order:

```
planner          `plan_rebalance`: checks, the number of micro-batches, bins to steps and ranks
packed_bins      sequences to micro-batches of equal cost, in rows without padding; swapped until
                 these cost the same
padded_bins      the same where each sequence is padded to the longest of its micro-batch
rebalancing      `Rebalancing`: where each sequence goes, and how even that is; how many
                 micro-batches are needed, and how even they can be
```
"""

from evenstep.plan.rebalance.planner import plan_rebalance
from evenstep.plan.rebalance.rebalancing import Rebalancing, fewest_micro_batches, least_imbalance

__all__ = ["Rebalancing", "fewest_micro_batches", "least_imbalance", "plan_rebalance"]
