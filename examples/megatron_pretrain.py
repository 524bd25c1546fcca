"""A GPT of megatron-core on packed rows of equal cost, of documents of very uneven length.

    torchrun --nproc-per-node 2 examples/megatron_pretrain.py checkpoint

Run it again, on any number of ranks, and it resumes. Packed rows need Transformer Engine.
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core import distributed as ddp
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt import gpt_layer_specs as layers
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from uneven import LONGEST, VOCABULARY, Documents

from evenstep import Even
from evenstep.integrations.megatron import MicroBatchIterator

SIZES = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "hidden_dropout": 0.0}
ROWS = {"num_microbatches": 4, "seq_length": LONGEST, "micro_batch_size": 1}
BATCHES = {"num_microbatches": 4, "policy": Even(2 * LONGEST, packed=True), "device": "cuda"}


def forward_step(iterator, model):
    batch = next(iterator)
    more = {name: batch[name] for name in ("labels", "packed_seq_params")}
    loss_of = partial(summed, batch["loss_mask"])
    return model(batch["tokens"], batch["position_ids"], None, **more), loss_of


def summed(loss_mask, losses):
    loss, tokens = (losses.float() * loss_mask).sum(), loss_mask.sum().int()
    return loss, tokens, torch.stack([loss.detach(), tokens.float()])


def main(folder: str, updates: int = 10) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.cuda.set_device(dist.get_node_local_rank())
    parallel_state.initialize_model_parallel()
    torch.manual_seed(0)  # the weights, on all ranks
    tensor_parallel.model_parallel_cuda_manual_seed(0)
    config = TransformerConfig(**SIZES, calculate_per_token_loss=True, use_cpu_initialization=True)
    config.finalize_model_grads_func = ddp.finalize_model_grads
    layer = layers.get_gpt_layer_with_transformer_engine_spec()
    gpt = GPTModel(config, layer, VOCABULARY, LONGEST, position_embedding_type="rope").cuda()
    model = ddp.DistributedDataParallel(config, ddp.DistributedDataParallelConfig(), gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    iterator = MicroBatchIterator(Documents(2000), config, **BATCHES)
    if any(Path(folder).glob("*")):
        state = {"model": gpt.sharded_state_dict(), "data": iterator.state_dict()}
        state = dist_checkpointing.load(state, folder)
        gpt.load_state_dict(state["model"])
        iterator.load_state_dict(state["data"])
    for _ in range(updates):
        model.zero_grad_buffer()
        job = {"forward_step_func": forward_step, "data_iterator": iterator, "model": model}
        losses = get_forward_backward_func()(**job, **ROWS)
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        loss, tokens = torch.stack(losses).sum(0)
        if not dist.get_rank():
            print(f"epoch {iterator.step.epoch}: loss {loss / tokens:.3f}")
    Path(folder).mkdir(exist_ok=True)
    state = {"model": gpt.sharded_state_dict(), "data": iterator.state_dict()}
    dist_checkpointing.save(state, folder)
    iterator.close()


if __name__ == "__main__":
    main(sys.argv[1])

# epoch 0: loss 5.554
