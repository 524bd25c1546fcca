"""Lightning: `Trainer` and `Fabric`.

```
trainer_loader   `loader`: what Trainer walks over, and how far it is
step_callback    `fit` in place of ``trainer.fit``; `progress` and
                 `estimated_stepping_batches` for schedulers;
                 `StepCallback`: scales losses, logs, and stops what would train wrongly
fabric_loader    `setup`: custom loops with Fabric
```

Trainer's loader and the callback meet in the batch: the loader puts its step in, and the callback
takes it out before ``training_step`` sees the batch.
"""

from __future__ import annotations

from evenstep.integrations.lightning.fabric_loader import setup
from evenstep.integrations.lightning.step_callback import (
    StepCallback,
    estimated_stepping_batches,
    fit,
    progress,
)
from evenstep.integrations.lightning.trainer_loader import loader

__all__ = ["StepCallback", "estimated_stepping_batches", "fit", "loader", "progress", "setup"]
