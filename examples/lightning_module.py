"""Lightning's Trainer, stopped and resumed by its own checkpoints.

    torchrun --nproc-per-node 2 examples/lightning_module.py --max-steps 10
    python examples/lightning_module.py --max-steps 20 --resume out/lightning/last.ckpt

The only evenstep lines are the loader, `even.fit` and that of the schedule: `training_step` stays
as it is.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR
from uneven import NextToken, make_loader

from evenstep.integrations import lightning as even


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = NextToken()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.model(batch["input_ids"], batch["labels"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = LambdaLR(optimizer, lambda _: 1 - even.progress(self.trainer))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("out/lightning"))
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--resume", type=Path)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=2,
        max_steps=arguments.max_steps,
        gradient_clip_val=1.0,
        logger=CSVLogger(arguments.folder),
        log_every_n_steps=5,
        callbacks=[ModelCheckpoint(arguments.folder, every_n_train_steps=5, save_last=True)],
    )
    even.fit(trainer, Module(), make_loader(), ckpt_path=arguments.resume)
    print(f"rank {trainer.global_rank}: {trainer.global_step} updates")


if __name__ == "__main__":
    main()

# rank 0: 10 updates
# rank 0: 20 updates
