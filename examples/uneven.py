"""Documents, a model and a loader that other examples share."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import evenstep

VOCABULARY, LONGEST = 256, 1024


class Documents(torch.utils.data.Dataset):
    """Sequences of very uneven length, the first third of each masked like a prompt."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = torch.empty(count).log_normal_(4.5, 0.9, generator=generator).long() + 2

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        length = int(self.lengths[index].clamp(max=LONGEST))
        tokens = torch.arange(index, index + length) % VOCABULARY
        labels = tokens.clone()
        labels[: 1 + length // 3] = -100
        return {"input_ids": tokens, "labels": labels}


class NextToken(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, 64)
        self.mix = torch.nn.GRU(64, 64, batch_first=True)
        self.head = torch.nn.Linear(64, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.mix(self.embedding(input_ids))[0])[:, :-1]
        # The mean over this rank's supervised tokens, as loss_scale expects.
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def make_loader() -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(2000),
        policy=evenstep.Even(max_tokens=2048),
        update_tokens=8192,
        shuffle=True,
        num_workers=1,
    )
