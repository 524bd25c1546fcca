"""Two ranks, DistributedDataParallel, and batches of a token budget instead of a batch size.

    torchrun --nproc-per-node 2 examples/ddp.py

The samples are the paragraphs of Python's own manual, as bytes: from 3 to 4,511. The evenstep lines
are the loader, `pop_step`, `loss * step.loss_scale` and `step.ends_update`.
"""

from __future__ import annotations

from contextlib import nullcontext
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import evenstep

TEXTS = [part for page in topics.values() for part in page.split("\n\n") if part.strip()]


class Paragraphs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(list(TEXTS[index].encode()))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = torch.nn.Embedding(256, 128), torch.nn.Linear(128, 256)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = evenstep.DataLoader(
        Paragraphs(),
        policy=evenstep.Even(max_tokens=8192, sync="update"),  # ranks wait at the end of an update
        update_tokens=65_536,
        shuffle=True,
        num_workers=1,
    )
    for epoch in range(2):
        real = padded = 0
        for batch in loader:
            step = evenstep.pop_step(batch)
            with nullcontext() if step.ends_update else model.no_sync():
                logits = model(batch["input_ids"])[:, :-1]
                # The mean over this rank's supervised tokens, as loss_scale expects.
                loss = F.cross_entropy(logits.mT, batch["labels"][:, 1:])
                (loss * step.loss_scale).backward()
            if step.ends_update:
                optimizer.step()
                optimizer.zero_grad()
            real, padded = real + step.tokens, padded + step.padded_tokens
        if step.rank == 0:
            print(
                f"epoch {epoch}: {step.update + 1} updates, padding {1 - real / padded:.0%}, "
                f"imbalance {step.imbalance:.2f}, loss {loss.item():.2f}"
            )
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# epoch 0: 9 updates, padding 13%, imbalance 1.01, loss 4.74
# epoch 1: 10 updates, padding 14%, imbalance 1.08, loss 4.34
