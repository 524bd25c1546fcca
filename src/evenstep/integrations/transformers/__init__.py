"""evenstep in Hugging Face's `Trainer`, and in every class that inherits from it.

```
install         `install` and `trainer_class`: what users call; `EvenTrainer`: the methods that
                Trainer lets its subclasses override; ends epochs
rollouts        `balance_rollouts`, for TRL's GRPOTrainer and RLOOTrainer: rows of rollouts to
                ranks, and back to padded micro-batches
loader          Trainer's own loader, taken over; what evenstep cannot work with; `RankShare`
evaluation      what Trainer evaluates on; predictions in the order of the dataset
model_labels    how the model reads labels, and what its loss is a mean over; trainers of pairs:
                what a sample of theirs holds; whether batches are packed
trainer_run     `TrainerRun`: one call of `train`: its loader, checkpoint and schedule;
                `EvenCallback`: corrects the counts of updates and ends the training;
                `TrainerBatches`: what Trainer walks over, and how far it is
```
"""

from __future__ import annotations

from evenstep.integrations.transformers.install import install, trainer_class
from evenstep.integrations.transformers.rollouts import balance_rollouts

__all__ = ["balance_rollouts", "install", "trainer_class"]
