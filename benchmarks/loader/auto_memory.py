"""``max_tokens="auto"`` on a CPU: how close the peak of a process comes to its share of memory.

    python -m benchmarks.loader.auto_memory --starts 7

Three models, whose memory is nearly all logits, wide activations, or scores of attention, which
grow as the square of a row; padded and packed in turn. Every start is a process of its own, with
another seed, that may have 1.5 GiB more than it begins with. A start that takes more than its whole
memory counts as out of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

import numpy as np
import torch
from torch import Tensor, nn

import evenstep

SHARE = 0.9
GROWS = 1536 << 20
UPDATES = 45


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held, self.out = nn.Embedding(2000, 8), nn.Linear(8, 4000)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.held(ids))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held, self.up, self.out = nn.Embedding(2000, 8), nn.Linear(8, 1024), nn.Linear(1024, 8)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.up(self.held(ids))
        for _ in range(4):
            hidden = torch.relu(hidden) * 0.5
        return self.out(hidden)


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held, self.out = nn.Embedding(2000, 16), nn.Linear(16, 64)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.held(ids)
        return self.out((hidden @ hidden.transpose(1, 2)).softmax(-1) @ hidden)


MODELS = {"logits": Logits, "wide": Wide, "scores": Scores}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def start(name: str, seed: int, packed: bool) -> dict[str, float]:
    """Trains one model in this process."""
    torch.set_num_threads(1)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = np.exp(np.random.default_rng(seed).normal(5, 0.8, 20_000)).clip(8, 1024).astype(int)
    total = int((peak() + GROWS) / SHARE)
    loader = evenstep.DataLoader(
        [{"input_ids": torch.full((int(length),), 7)} for length in lengths],
        policy=evenstep.Even("auto", packed=packed),
        memory=evenstep.Memory(share=SHARE, total_bytes=total),
        shuffle=True,
        seed=seed,
        num_workers=1,
    )
    for batch, step in loader.steps():
        model(batch["input_ids"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step.step == UPDATES:
            break
    loader.close()
    return {"share": peak() / total, "tokens": step.padded_tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, seed = args.one
        print(json.dumps(start(name, int(seed), packed=int(seed) % 2 == 1)))
        return
    for name in MODELS:
        shares = []
        for seed in range(args.starts):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.loader.auto_memory", "--one", name, str(seed)],
                capture_output=True,
                text=True,
            )
            shares.append(json.loads(done.stdout)["share"] if not done.returncode else float("inf"))
        over = sum(share > 1 for share in shares)
        low, middle, high = (np.quantile(shares, q) / SHARE for q in (0, 0.5, 1))
        print(
            f"{name}: peak over the share {middle:.3f} ({low:.3f} to {high:.3f}), "
            f"{over} of {len(shares)} starts out of memory"
        )


if __name__ == "__main__":
    main()
