"""A job that can be stopped at any update, and resumed on any number of ranks.

    torchrun --nproc-per-node 2 examples/resume.py --folder /tmp/job --stop-after 12
    torchrun --nproc-per-node 2 examples/resume.py --folder /tmp/job --stop-after 12
    torchrun --nproc-per-node 1 examples/resume.py --folder /tmp/job

Kill it in between in any way. On the same number of ranks the job resumes with exactly the batches
that would have come next; on another number, with every remaining sample of the epoch once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import optim
from torch.nn.parallel import DistributedDataParallel
from uneven import NextToken, make_loader

import evenstep


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--folder", type=Path, required=True, help="folder of checkpoints")
    arguments.add_argument("--stop-after", type=int, help="updates to make")
    options = arguments.parse_args()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(NextToken())
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    loader = make_loader()
    complete = sorted(options.folder.glob("*/.metadata"))  # DCP writes it last
    if complete:
        checkpoint = complete[-1].parent
        dcp.load({"model": model.module}, checkpoint_id=checkpoint)
        # Every rank reads the parts of all ranks, so their number may differ.
        loader.load_state_dict(evenstep.read_states(checkpoint, "loader"))
    made = 0
    for epoch in range(loader.epoch, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            step = evenstep.pop_step(batch)
            loss = model(batch["input_ids"], batch["labels"])
            (loss * step.loss_scale).backward()
            if not step.ends_update:
                continue
            optimizer.step()
            optimizer.zero_grad()
            made += 1
            if made % 5 == 0 or made == options.stop_after:
                name = f"epoch-{epoch}-step-{step.step:05d}"
                state = {"model": model.module, "loader": loader}
                dcp.save(state, checkpoint_id=options.folder / name)
                if step.rank == 0:
                    print(f"{name} on {step.world_size} ranks, loss {loss.item():.2f}, saved")
            if made == options.stop_after:
                loader.close()
                dist.destroy_process_group()
                return
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# epoch-0-step-00019 on 2 ranks, loss 5.38, saved
# epoch-0-step-00095 on 2 ranks, loss 4.45, saved
# epoch-1-step-00231 on 1 ranks, loss 1.58, saved
