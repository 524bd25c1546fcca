"""evenstep in Hugging Face's `Trainer`, and in every class that inherits from it.

```
install      `install` and `trainer_class`: what users call
hooks        `EvenTrainer`: the methods that Trainer lets its subclasses override
loader       Trainer's own loader, taken over; what evenstep cannot work with
packing      whether batches are packed: tried on two samples
rank_share   `RankShare`: what a rank reads of an iterable dataset
run          `TrainerRun`: one call of `train`: its loader, checkpoint and schedule
batches      `TrainerBatches`: what Trainer walks over, and how far it is
callback     `EvenCallback`: when an epoch and the training end
```
"""

from __future__ import annotations

from evenstep.integrations.transformers.install import install, trainer_class

__all__ = ["install", "trainer_class"]
