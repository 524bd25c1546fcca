"""``evenstep simulate``: what a policy or a planner does to given lengths.

```
group             the commands, and those for the policies of the loader
packing           workload-packing: micro-batches of pretraining
rebalance         rollouts over ranks
```
"""

from __future__ import annotations

from evenstep.cli.simulate.group import register

__all__ = ["register"]
