"""evenstep in Hugging Face's `Trainer`, and in every class that inherits from it.

```
install      `install` and `trainer_class`: what users call
hooks        `EvenTrainer`: the methods that Trainer lets its subclasses override; ends epochs
loader       Trainer's own loader, taken over; what evenstep cannot work with; `RankShare`
packing      whether batches are packed: tried on two samples
preference   trainers of pairs: what a sample holds, and what the loss is a mean over
run          `TrainerRun`: one call of `train`: its loader, checkpoint and schedule;
             `EvenCallback`: corrects the counts of updates and ends the training
batches      `TrainerBatches`: what Trainer walks over, and how far it is
```
"""

from __future__ import annotations

from evenstep.integrations.transformers.install import install, trainer_class

__all__ = ["install", "trainer_class"]
