"""``evenstep simulate``: what a policy does to given lengths.

```
group             the commands, and those for the policies of the loader
workload_packing  micro-batches of pretraining
```
"""

from __future__ import annotations

from evenstep.cli.simulate.group import register

__all__ = ["register"]
