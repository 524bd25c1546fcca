"""A rank of a job that trains a tiny Llama with torchtitan's Trainer, on the CPU."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import titan_on_cpu  # noqa: F401  first
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

import evenstep
from documents import Documents
from evenstep.integrations.torchtitan import EvenDataLoader

LONGEST = 64
COUNT = 60


class Inputs(Documents):
    """Without fields that would become arguments of the model."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {name: sample[name] for name in ("input_ids", "labels")}


DOCUMENTS = Inputs(COUNT, longest=LONGEST, prompts=True)


class NoTokenizer(BaseTokenizer):
    """Documents are tokens already."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **others: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError

    decode = encode
    get_vocab_size = encode


class WatchedLoader(EvenDataLoader):
    """Notes the samples of every step that is begun."""

    @dataclass(kw_only=True, slots=True)
    class Config(EvenDataLoader.Config):
        pass

    seen: list[list[int]] | None = None

    def __iter__(self) -> Iterator[Any]:
        self.seen, last = [], None
        for item in super().__iter__():
            if self.stream.step is not last:
                last = self.stream.step
                self.seen.append([] if last.filler else list(last.indices))
            yield item


class WatchedMetrics(MetricsProcessor):
    """Notes the losses that are logged."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    losses: list[float]

    def log(self, step: int, global_avg_loss: float, *others: Any, **more: Any) -> None:
        self.losses = [*getattr(self, "losses", []), global_avg_loss]
        super().log(step, global_avg_loss, *others, **more)


def make_dataset(tokenizer: Any, longest: int) -> Documents:
    assert isinstance(tokenizer, NoTokenizer)
    assert longest == LONGEST
    return DOCUMENTS


def make_config(
    folder: str, steps: int, micro_batches: int, interval: int, parallelism: dict[str, Any]
) -> Trainer.Config:
    spec = model_registry("debugmodel")
    del spec.model.layers[2:]
    ranks = int(os.environ["WORLD_SIZE"])
    for degree in parallelism.values():
        ranks //= degree
    return Trainer.Config(
        model_spec=spec,
        dump_folder=folder,
        loss=CrossEntropyLoss.Config(),
        tokenizer=NoTokenizer.Config(),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            local_batch_size=2,
            global_batch_size=2 * ranks * micro_batches,
            seq_len=LONGEST,
            steps=steps,
            max_norm=1e9,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        # The default, "spmd_types", needs a newer torch than 2.13.
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor", **parallelism),
        metrics=WatchedMetrics.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(
            enable=interval > 0, interval=interval or 1, last_save_model_only=False
        ),
        activation_checkpoint=None,
        debug=DebugConfig(seed=0),
    )


class Audit:
    """At every step of the optimizer: samples, and how far the gradient is from that of all of them
    in one batch, made without torchtitan's loop."""

    def __init__(self, trainer: Trainer, die_at: int, write: Any) -> None:
        self.trainer = trainer
        self.die_at = die_at
        self.write = write
        self.updates: list[Any] = []
        self.errors: list[float] = []
        self.losses: list[float] = []
        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(self.before_step)

    def before_step(self, *_: Any) -> None:
        loader = self.trainer.dataloader
        if loader.seen is None:  # before training, a state is loaded into the optimizer
            return
        steps, loader.seen = loader.seen, []
        self.updates.append([i for step in steps for i in step])
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.updates[-1])
        if not self.trainer.parallel_dims.tp_enabled:
            self.compare([*chain(*everyone)])
        if self.die_at == len(self.updates):
            self.write()
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)

    def compare(self, indices: list[int]) -> None:
        (model,) = self.trainer.model_parts
        weights = {name: full(p) for name, p in model.named_parameters()}
        own = torch.cat([full(p.grad).flatten() for p in model.parameters()])
        twin = self.trainer.model_config.build()
        twin.init_weights(buffer_device=None)
        twin.load_state_dict(weights, strict=False)
        loss, tokens = torch.zeros(()), 0
        for index in indices:
            sample = DOCUMENTS[index]
            positions = torch.arange(len(sample["input_ids"]))[None]
            logits = twin(
                sample["input_ids"][None],
                positions,
                twin.get_attention_masks(positions=positions),
            )
            labels = sample["labels"][1:]
            loss = loss + cross_entropy(logits[0, :-1].float(), labels, reduction="sum")
            tokens += int((labels != -100).sum())
        (loss / tokens).backward()
        truth = torch.cat([p.grad.flatten() for p in twin.parameters()])
        self.errors.append(float((own - truth).norm() / truth.norm()))
        self.losses.append(float(loss.detach() / tokens))


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def main(
    folder: str,
    steps: int,
    micro_batches: int = 1,
    epochs: int = 0,
    interval: int = 0,
    die_at: int = 0,
    parallelism: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> None:
    config = make_config(folder, steps, micro_batches, interval, parallelism or {})
    for name, value in (training or {}).items():
        setattr(config.training, name, value)
    config.dataloader = WatchedLoader.Config(
        make_dataset=make_dataset,
        micro_batches_per_step=micro_batches,
        epochs=epochs,
        options={"memory": evenstep.Memory(buffer_size=16)},
    )
    trainer = config.build()

    def write() -> None:
        report = {
            "updates": audit.updates,
            "errors": audit.errors,
            "truth": audit.losses,
            "losses": getattr(trainer.metrics_processor, "losses", []),
            "step": trainer.step,
            "values": trainer.dataloader.stream.values.take(),
        }
        (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(report))

    audit = Audit(trainer, die_at, write)
    trainer.train()
    write()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
