"""Megatron-LM and megatron-core: the data iterator of their schedules, with packed micro-batches.

    iterator = MicroBatchIterator(dataset, config, num_microbatches=8, policy=policy)
    forward_backward_func(forward_step_func=..., data_iterator=iterator, num_microbatches=8, ...)

Under ``calculate_per_token_loss`` Megatron sums the losses of an update, and divides by the tokens
of all ranks whose loss mask is 1. So no loss is scaled here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from evenstep.batch.formats.train_loops import to_megatron
from evenstep.batch.pack import PackCollator
from evenstep.errors import CollateError, ConfigurationError
from evenstep.integrations.releases import check_hooks, importing
from evenstep.integrations.update_stream import UpdateStream
from evenstep.plan.policy import Policy

with importing("megatron", "megatron-core"):
    from megatron.core import parallel_state

check_hooks(
    "megatron-core",
    parallel_state,
    "get_context_parallel_world_size",
    "get_data_parallel_group",
)


class MicroBatchIterator(UpdateStream):
    """Micro-batches of this data-parallel rank, without end; each sample once an epoch.

    Every process that has one prepares its micro-batches by itself: those of one data-parallel rank
    are the same on all of its tensor-, pipeline- and context-parallel ranks. The processes of a
    `parallel_state.get_data_parallel_group` make theirs together, all or none. So every process may
    have one, as loops on megatron-core do; or only those that Megatron-LM has read data.
    """

    def __init__(
        self,
        dataset: Any,
        config: Any,
        *,
        num_microbatches: int,
        policy: Policy,
        seed: int = 0,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            dataset: of mappings with ``input_ids`` and, aligned with them, ``labels``, which are
                shifted here.
            config: the model's ``TransformerConfig``, or Megatron-LM's arguments.
            num_microbatches: of an update on each rank, as the schedule takes them.
            policy: one that packs; an `Even` does so in any case.
            device: to which micro-batches are copied; None leaves them on the CPU, and so, too, the
                boundaries in their ``packed_seq_params``.
            options: other arguments of `evenstep.DataLoader`.

        Raises:
            ConfigurationError: a loss that is not divided by tokens, or policy and collate function
                that do not pack.
        """
        if not config.calculate_per_token_loss:
            raise ConfigurationError(
                "calculate_per_token_loss is False, so Megatron averages over micro-batches of "
                "unequally many tokens; set it, --calculate-per-token-loss in Megatron-LM"
            )
        self._device = device
        self._context_parallel = parallel_state.get_context_parallel_world_size()
        # Stages of a pipeline allocate what they receive by the shape of the first micro-batch.
        self._one_shape = (
            config.pipeline_model_parallel_size > 1 and not config.variable_seq_lengths
        )
        self._tokens: int | None = None
        chunks = 2 * self._context_parallel if self._context_parallel > 1 else None
        options.setdefault("collate_fn", PackCollator(pad_documents_to_multiple_of=chunks))
        group = parallel_state.get_data_parallel_group()
        super().__init__(dataset, policy, num_microbatches, group=group, seed=seed, **options)
        self._micro_batches = super().__iter__()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        """The fields of `to_megatron` that are tensors, as Megatron-LM's ``get_batch`` takes them,
        and ``packed_seq_params``. Padding counts as the last tokens of its document, which no real
        token sees.

        Raises:
            CollateError: as `to_megatron`; or rows of unequal lengths in a pipeline that takes one.
        """
        fields, parameters = to_megatron(
            next(self._micro_batches), context_parallel_size=self._context_parallel
        )
        fields["cu_seqlens"] = parameters.cu_seqlens_q[None]
        self._check_shape(fields["tokens"].shape[1])
        fields = self._on_device({n: value for n, value in fields.items() if value is not None})
        parameters = replace(parameters, **self._on_device(vars(parameters)))
        return {**fields, "packed_seq_params": parameters}

    def _on_device(self, values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value.to(self._device, non_blocking=True)
            if self._device is not None and isinstance(value, torch.Tensor)
            else value
            for name, value in values.items()
        }

    def _check_shape(self, tokens: int) -> None:
        if self._one_shape and self._tokens not in (None, tokens):
            raise CollateError(
                f"a row of {tokens:,} tokens follows one of {self._tokens:,} in a pipeline; set "
                "variable_seq_lengths, or collate_fn=PackCollator(pad_to_multiple_of=max_tokens)"
            )
        self._tokens = tokens

    save_state = UpdateStream.state_dict  # the name that Megatron-LM's --dataloader-save calls
