"""verl's updates of actor and critic: ranks exchange their sequences before they train on them.

    from evenstep.integrations import verl as even
    from verl.workers.engine.fsdp import transformer_impl

    even.balance_updates(transformer_impl)

verl deals equally many sequences of an update to every rank, whose engine divides them into
micro-batches by `prepare_micro_batches`, a name in the engine's module. verl has counted the tokens
of all ranks by then, and divides each loss by them or by the sequences of all, so no loss is scaled
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, wraps
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.integrations.releases import check_hooks, importing
from evenstep.rebalance import Rebalancer

with importing("verl", "verl"):
    from tensordict import NonTensorData, NonTensorStack, TensorDict
    from verl.utils.tensordict_utils import get, nested_tensor_from_tensor_list


def balance_updates(engine: ModuleType, *, cost: Cost | None = None) -> None:
    """Has the ranks of an engine exchange the sequences of every update, in each process that calls
    it. Log-probabilities and values are still computed as verl divides them.

    Args:
        engine: the module of verl's engine, such as `verl.workers.engine.fsdp.transformer_impl`.
        cost: of a micro-batch; None counts its tokens.

    Raises:
        ImportError: the module has no `prepare_micro_batches`.
    """
    check_hooks("verl", engine, "prepare_micro_batches")
    of_verl: Any = engine.prepare_micro_batches

    @cache  # one for all updates of a model
    def rebalancer(**options: Any) -> Rebalancer:
        return Rebalancer(cost=cost, **options)

    @wraps(of_verl)
    def prepare_micro_batches(
        data: TensorDict,
        dp_group: dist.ProcessGroup | None = None,
        num_batches_divided_by: int | None = None,
        **options: Any,
    ) -> tuple[list[TensorDict], list[list[int]] | None]:
        """
        Returns:
            The micro-batches of this rank, and of each the positions of its sequences among those
            that the rank has now.
        """
        if dp_group is None or not torch.is_grad_enabled():  # one rank, or results that must return
            return of_verl(data, dp_group, num_batches_divided_by, **options)
        _check(data)
        update = rebalancer(
            max_tokens=get(data, "max_token_len_per_gpu") * get(data, "sp_size", 1),
            packed=get(data, "use_remove_padding", True),
            multiple_of=num_batches_divided_by or 1,
            group=dp_group,
        ).rebalance(_rows_of(data), lengths=data["input_ids"].offsets().diff().cpu())
        plan = update.plan
        if any(not len(own) for rank in range(plan.ranks) for own in plan.of_rank(rank)):
            raise ConfigurationError(
                f"{len(plan.rank)} sequences of an update are fewer than {plan.micro_batches} "
                f"micro-batches on each of {plan.ranks} ranks; raise ppo_mini_batch_size"
            )
        ends = accumulate(map(len, update.micro_batches), initial=0)
        positions = [list(range(begin, end)) for begin, end in pairwise(ends)]
        return [_batch_of(rows, data) for rows in update.micro_batches], positions

    engine.prepare_micro_batches = prepare_micro_batches  # type: ignore[attr-defined]


def _check(data: TensorDict) -> None:
    refused = {
        "use_dynamic_bsz=False": not get(data, "use_dynamic_bsz", True),
        "force_group_size": get(data, "force_group_size", 1) != 1,
        "return_model_output": get(data, "return_model_output", False),
    }
    for name, is_on in refused.items():
        if is_on:
            raise ConfigurationError(
                f"balance_updates forms micro-batches of the rows of all ranks, by their tokens, "
                f"and cannot with {name}; change that, or train without balance_updates"
            )


def _rows_of(data: TensorDict) -> list[dict[str, Any]]:
    """[sequences] what belongs to each, by the names of its columns."""
    columns = {
        name: column.unbind() if isinstance(column, torch.Tensor) else get(data, name)
        for name, column in data.items()
        if not isinstance(column, NonTensorData)
    }
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _batch_of(rows: Sequence[dict[str, Any]], data: TensorDict) -> TensorDict:
    """A micro-batch of rows, with the columns of `data` and what that has for all rows together."""
    made: dict[str, Any] = {}
    for name, column in data.items():
        if isinstance(column, NonTensorData):
            made[name] = NonTensorData(column.data)
        elif not isinstance(column, torch.Tensor):
            made[name] = NonTensorStack.from_list([NonTensorData(row[name]) for row in rows])
        else:
            values = [row[name].to(column.device) for row in rows]
            made[name] = (
                nested_tensor_from_tensor_list(values, ragged_idx=1 + _ragged_dim(column))
                if column.is_nested
                else torch.stack(values)
            )
    return TensorDict(made, batch_size=[len(rows)])


def _ragged_dim(column: Any) -> int:
    """Which dimension of a row is as long as the row is: not always the first, as of positions of
    [4, tokens]."""
    rows, lengths = column.unbind(), column.offsets().diff().tolist()
    return next(
        dim
        for dim in range(rows[0].ndim)
        if all(row.shape[dim] == length for row, length in zip(rows, lengths))
    )
