"""Micro-batches on a pipeline.

```
schedule              what a schedule makes every stage do, and how long a step takes
micro_batch_order     the order of micro-batches that suits a schedule
```
"""

from evenstep.plan.pipeline.micro_batch_order import order_micro_batches
from evenstep.plan.pipeline.schedule import PipelineSchedule

__all__ = ["PipelineSchedule", "order_micro_batches"]
