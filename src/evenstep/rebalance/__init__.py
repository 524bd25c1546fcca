"""Rollouts and other batches that are already there, balanced over ranks before training.

```
rebalancer    `Rebalancer`: this rank's sequences in, the micro-batches that it trains on out;
              `RebalancedUpdate`: these, the scales of their losses, and the way back
all_to_all    `AllToAll`: bytes between ranks, over torch.distributed
embeddings    `bring_embeddings`: outputs of images from the ranks that encoded them, and gradients
              back
```

`plan_rebalance` decides what goes where, without torch: a driver that holds all sequences needs no
more. See `evenstep.plan.rebalance`.
"""

from evenstep.plan.rebalance import Rebalancing, plan_rebalance
from evenstep.rebalance.embeddings import bring_embeddings
from evenstep.rebalance.rebalancer import RebalancedUpdate, Rebalancer

__all__ = ["RebalancedUpdate", "Rebalancer", "Rebalancing", "bring_embeddings", "plan_rebalance"]
