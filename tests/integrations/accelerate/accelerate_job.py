"""A loop as people write it with Accelerate, and what it trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from launched_rank import as_rank
from ranks import Rank
from tiny_model import TinyModel, flat
from update_checks import Update, loader_of, sized_loader

from evenstep.integrations import accelerate as even


def accelerator_of(rank: Rank | None, **options: Any) -> Accelerator:
    if rank is not None:
        as_rank(rank)
        # A rank is forked, perhaps from a process in which another test has made one.
        AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, **options)
    assert accelerator.num_processes == (rank.world_size if rank is not None else 1)
    return accelerator


def train(
    rank: Rank | None,
    accumulate: int,
    *,
    epochs: int = 1,
    save: Path | None = None,
    save_after: int = 2,
    hang: bool = False,
    load: Path | None = None,
    sized: bool = False,
    **options: Any,
) -> list[list[Update]]:
    """Updates of each epoch.

    Args:
        save: where a checkpoint is saved, after so many updates.
        hang: wait for ever once it is.
        load: the checkpoint to begin with.
        sized: the loader chooses the steps of an update.
    """
    accelerator = accelerator_of(rank, gradient_accumulation_steps=accumulate, **options)
    model: Any = TinyModel()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = sized_loader() if sized else loader_of()
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)
    if load is not None:
        accelerator.load_state(str(load))
    done = []
    updates = 0
    for _ in range(loader.epoch, epochs):
        done.append([Update()])
        for batch in loader:
            step = loader.step
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                update = done[-1][-1]
                update.samples += step.indices
                update.steps += 1
                share = step.loss_scale * loss.detach().nan_to_num()
                update.loss += accelerator.reduce(share, "mean").item()
                assert accelerator.sync_gradients == step.ends_update
                if accelerator.sync_gradients:
                    update.gradient = flat([p.grad for p in model.parameters()])
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done[-1].append(Update())
                updates += 1
                if save is not None and updates == save_after:
                    accelerator.save_state(str(save))
                    if hang:
                        rank.say("saved", [u.samples for epoch in done for u in epoch])
                        rank.heard(rank.rank, "never", within=60)
        assert done[-1].pop().steps == 0
    return done
