"""A training loop with Hugging Face Accelerate that stops, and resumes where it stopped.

    torchrun --nproc-per-node 2 examples/accelerate_loop.py --stop-after 10
    torchrun --nproc-per-node 1 examples/accelerate_loop.py --stop-after 10

The only evenstep lines are the loader and `even.prepare`, which has `accelerator.backward` scale
the losses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from uneven import NextToken, make_loader

from evenstep.integrations import accelerate as even


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("out/accelerate"))
    parser.add_argument("--stop-after", type=int, default=0, help="updates; 0 is two epochs")
    arguments = parser.parse_args()

    cpu = not torch.cuda.is_available()
    accelerator = Accelerator(cpu=cpu)
    torch.manual_seed(0)
    model = NextToken()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, make_loader())
    if arguments.folder.exists():
        accelerator.load_state(str(arguments.folder))

    updates = tokens = 0
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            tokens += loader.step.global_tokens
            with accelerator.accumulate(model):
                loss = model(batch["input_ids"], batch["labels"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            accelerator.print(f"epoch {epoch} update {loader.step.update}: {tokens} tokens")
            updates, tokens = updates + 1, 0
            if updates == arguments.stop_after:
                accelerator.save_state(str(arguments.folder))
                accelerator.end_training()
                return
    accelerator.end_training()


if __name__ == "__main__":
    main()

# epoch 0 update 8: 8194 tokens
# epoch 0 update 9: 8152 tokens
# ...
