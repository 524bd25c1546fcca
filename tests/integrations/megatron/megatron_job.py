"""A rank of a job that trains a tiny GPT on the CPU, with megatron-core's model, DDP, schedules and
checkpoints."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import cuda_on_cpu

cuda_on_cpu.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

import evenstep  # noqa: E402
from documents import VOCABULARY, Documents  # noqa: E402
from evenstep.batch import to_megatron  # noqa: E402
from evenstep.integrations.megatron import MicroBatchIterator  # noqa: E402
from evenstep.plan import Policy  # noqa: E402

MAX_TOKENS = 96
LONGEST = 64
COUNT = 60
DOCUMENTS = Documents(COUNT, longest=LONGEST, prompts=True)


class AttentionOfDocuments(torch.nn.Module):
    """Attention within the documents of `PackedSeqParams`, as Transformer Engine's, which needs
    CUDA; megatron-core's own takes no packed rows."""

    def __init__(self, config: TransformerConfig, **others: Any) -> None:
        super().__init__()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *,
        packed_seq_params: Any,
        **others: Any,
    ) -> torch.Tensor:
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        assert bounds[-1] == len(query), "the row has tokens of no document"
        parts = []
        for begin, end in pairwise(bounds):
            q, k, v = (x[begin:end].transpose(0, 1) for x in (query, key, value))
            part = scaled_dot_product_attention(q, k, v, is_causal=True)
            parts.append(part.transpose(0, 1).flatten(1))
        return torch.cat(parts)


def make_config(tensor: int, pipeline: int) -> TransformerConfig:
    return TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        calculate_per_token_loss=True,
        variable_seq_lengths=pipeline > 1,
        moe_token_dispatcher_type="alltoall",  # what variable_seq_lengths asks for
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )


def layer_spec() -> Any:
    layer = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = AttentionOfDocuments
    return layer


def make_model(config: TransformerConfig) -> GPTModel:
    torch.manual_seed(0)
    return GPTModel(
        config=config,
        transformer_layer_spec=layer_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=LONGEST,
        position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )


def forward_step(
    data_iterator: Any, model: torch.nn.Module
) -> tuple[torch.Tensor, Callable[..., Any]]:
    """As ``pretrain_gpt.py`` has it."""
    batch = next(data_iterator)
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch.get("attention_mask"),
        labels=batch["labels"],
        packed_seq_params=batch["packed_seq_params"],
    )
    return output, partial(loss_of, batch["loss_mask"])


def loss_of(loss_mask: torch.Tensor, output: torch.Tensor) -> tuple[Any, ...]:
    loss = torch.sum(output.view(-1).float() * loss_mask.view(-1))
    tokens = loss_mask.sum().clone().detach().to(torch.int)
    return loss, tokens, torch.stack([loss.clone().detach(), tokens.float()])


def token_mean(weights: dict[str, Any], indices: list[int], config: Any) -> tuple[float, Any]:
    """Loss and gradient of all samples in one batch: one at a time, without Megatron's DDP."""
    model = make_model(config)
    model.load_state_dict(weights)
    total, tokens = torch.zeros(()), 0
    for index in indices:
        fields, parameters = to_megatron(evenstep.PackCollator()([DOCUMENTS[index]]))
        losses = model(
            fields["tokens"],
            fields["position_ids"],
            None,
            labels=fields["labels"],
            packed_seq_params=parameters,
        )
        total = total + (losses * fields["loss_mask"]).sum()
        tokens += int(fields["loss_mask"].sum())
    (total / tokens).backward()
    return float(total.detach() / tokens), torch.cat([p.grad.flatten() for p in model.parameters()])


def policy_of(name: str, micro_batches: int) -> Policy:
    if name == "workload":
        return evenstep.WorkloadPacking(MAX_TOKENS, micro_batches=micro_batches)
    return evenstep.Even(MAX_TOKENS, packed=True)


def main(
    folder: str,
    updates: int,
    micro_batches: int = 1,
    policy: str = "even",
    tensor: int = 1,
    pipeline: int = 1,
    save_at: int = 0,
    load: bool = False,
    die_at: int = 0,
    options: dict[str, Any] | None = None,
) -> None:
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor, pipeline)
    config = make_config(tensor, pipeline)
    config.finalize_model_grads_func = finalize_model_grads
    model = DistributedDataParallel(
        config=config,
        ddp_config=DistributedDataParallelConfig(overlap_grad_reduce=False),
        module=make_model(config),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iterator = MicroBatchIterator(
        DOCUMENTS,
        config,
        num_microbatches=micro_batches,
        policy=policy_of(policy, micro_batches),
        memory=evenstep.Memory(buffer_size=16),
        **(options or {}),
    )
    checkpoint = Path(folder) / "checkpoint"
    if load:
        state = {"model": model.module.sharded_state_dict(), "loader": iterator.state_dict()}
        state = dist_checkpointing.load(state, str(checkpoint))
        model.module.load_state_dict(state["model"])
        iterator.load_state_dict(state["loader"])
    forward_backward = get_forward_backward_func()
    report: list[dict[str, Any]] = []
    rerun = RerunDataIterator(iterator)
    for update in range(1, updates + 1):
        watched = Watched(iterator, rerun)
        model.zero_grad_buffer()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=watched,
            model=model,
            num_microbatches=micro_batches,
            seq_length=MAX_TOKENS,
            micro_batch_size=1,
            forward_only=False,
        )
        rerun.advance()
        one: dict[str, Any] = {"indices": watched.indices, "rows": watched.rows}
        if losses:  # on the last stage of a pipeline
            total = torch.stack(losses).sum(0)
            dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
            one["loss"] = float(total[0] / total[1])
        if tensor == pipeline == 1:
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, watched.indices)
            weights = model.module.state_dict()
            one["true loss"], truth = token_mean(weights, [*chain(*everyone)], config)
            own = torch.cat([p.main_grad.flatten() for p in model.parameters()])
            one["error"] = float((own - truth).norm() / truth.norm())
        report.append(one)
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
        if save_at == update:
            checkpoint.mkdir(exist_ok=True)
            state = {"model": model.module.sharded_state_dict(), "loader": iterator.state_dict()}
            dist_checkpointing.save(state, str(checkpoint))
        if die_at == update:
            write(folder, report)
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    write(folder, report)
    iterator.close()
    dist.destroy_process_group()


class Watched:
    """Notes what an update is made of."""

    def __init__(self, iterator: MicroBatchIterator, rerun: RerunDataIterator) -> None:
        self._iterator = iterator
        self._rerun = rerun
        self.indices: list[int] = []
        self.rows: list[list[int]] = []
        """Tokens of the micro-batches, those without a loss as their negatives."""

    def __next__(self) -> dict[str, Any]:
        before = self._iterator.step
        batch = next(self._rerun)
        step = self._iterator.step
        if step is not before and step is not None:
            self.indices += step.indices
        self.rows.append(
            torch.where(batch["loss_mask"] > 0, 1, -1).mul(batch["tokens"])[0].tolist()
        )
        return batch


def write(folder: str, report: list[dict[str, Any]]) -> None:
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
