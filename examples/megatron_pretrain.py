"""A GPT of megatron-core on packed rows of equal cost, with documents of very uneven length.

    torchrun --nproc-per-node 2 examples/megatron_pretrain.py checkpoint

Run it again, on any number of ranks, and it goes on. Packed rows need Transformer Engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, distributed, parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt import gpt_layer_specs as layers
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

import evenstep
from evenstep.integrations.megatron import MicroBatchIterator

VOCABULARY, LONGEST, MICRO_BATCHES = 256, 1024, 4


class Documents(torch.utils.data.Dataset):
    """Sequences of very uneven length."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 2 + index**2 % LONGEST // (1 + index % 9)) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens.clone()}


def forward_step(iterator: Any, model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
    batch = next(iterator)
    tokens, positions, loss_mask = (batch[n] for n in ("tokens", "position_ids", "loss_mask"))
    more = {name: batch[name] for name in ("labels", "packed_seq_params")}
    return model(tokens, positions, None, **more), partial(loss_function, loss_mask)


def loss_function(loss_mask: torch.Tensor, losses: torch.Tensor) -> tuple[Any, ...]:
    """The sum: Megatron divides by the tokens of the update."""
    loss, tokens = (losses.float() * loss_mask).sum(), loss_mask.sum().int()
    return loss, tokens, torch.stack([loss.detach(), tokens.float()])


def main(folder: str, updates: int = 10) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        use_cpu_initialization=True,
        calculate_per_token_loss=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    config.finalize_model_grads_func = distributed.finalize_model_grads
    gpt = GPTModel(
        config,
        layers.get_gpt_layer_with_transformer_engine_spec(),
        VOCABULARY,
        LONGEST,
        position_embedding_type="rope",
    ).cuda()
    how = distributed.DistributedDataParallelConfig()
    model = distributed.DistributedDataParallel(config, how, gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    iterator = MicroBatchIterator(
        Documents(),
        config,
        num_microbatches=MICRO_BATCHES,
        policy=evenstep.Even(2 * LONGEST, packed=True),
        device="cuda",
    )

    checkpoint = Path(folder)
    if any(checkpoint.glob("*")):
        state = {"model": gpt.sharded_state_dict(), "data": iterator.state_dict()}
        state = dist_checkpointing.load(state, folder)
        gpt.load_state_dict(state["model"])
        iterator.load_state_dict(state["data"])
    for _ in range(updates):
        model.zero_grad_buffer()
        losses = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iterator,
            model=model,
            num_microbatches=MICRO_BATCHES,
            seq_length=LONGEST,
            micro_batch_size=1,
        )
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        total = torch.stack(losses).sum(0)
        if dist.get_rank() == 0:
            print(f"epoch {iterator.step.epoch}: loss {total[0] / total[1]:.3f}")
    checkpoint.mkdir(exist_ok=True)
    state = {"model": gpt.sharded_state_dict(), "data": iterator.state_dict()}
    dist_checkpointing.save(state, folder)
    iterator.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
