"""`Rebalancer`: sequences to the ranks that train on them, after all lengths are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from evenstep.batch.measure import length_of
from evenstep.cost import Cost
from evenstep.errors import EvenstepError, MismatchError, SampleError, described
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain
from evenstep.plan.rebalance import plan_rebalance
from evenstep.plan.value_checks import check_at_least
from evenstep.rebalance.all_to_all import AllToAll
from evenstep.rebalance.update import RebalancedUpdate


@dataclass(frozen=True, kw_only=True)
class Rebalancer:
    """Gives every rank as many micro-batches, and micro-batches of equal cost.

    balancer = Rebalancer(max_tokens=16_384)
    update = balancer.rebalance(rollouts)              # this rank's
    for rows, scale in zip(update.micro_batches, update.loss_scales("token")):
        (model_loss(collate(rows)) * scale).backward()
    optimizer.step()
    """

    max_tokens: int
    """Tokens of a micro-batch, with its padding: what fits in memory."""
    packed: bool = True
    """Whether micro-batches are rows without padding."""
    cost: Cost | None = None
    """Of a micro-batch; None is that of an unknown model: see `UNKNOWN_MODEL`."""
    multiple_of: int = 1
    """The number of micro-batches is a multiple of it, as pipelines need."""
    group: dist.ProcessGroup | None = None
    """The data-parallel ranks; None is the default group."""

    def __post_init__(self) -> None:
        check_at_least(1, max_tokens=self.max_tokens, multiple_of=self.multiple_of)

    def rebalance(
        self,
        sequences: Sequence[Mapping[str, Any]],
        *,
        lengths: npt.ArrayLike | None = None,
        supervised: npt.ArrayLike | None = None,
        costs: npt.ArrayLike | None = None,
        together: npt.ArrayLike | None = None,
        prompts: npt.ArrayLike | None = None,
    ) -> RebalancedUpdate:
        """Exchanges the sequences of an update. All ranks call it together.

        Args:
            sequences: those that this rank has, as mappings of tensors, arrays, numbers and text.
            lengths: [sequences] tokens of each; None counts ``input_ids``.
            supervised: [sequences] tokens that the loss counts; None is all.
            costs, together, prompts: [sequences] see `evenstep.plan.rebalance.plan_rebalance`.

        Raises:
            ConfigurationError, SampleError: on all ranks; see `plan_rebalance`.
            MismatchError: ranks have different options.
            PeerError: a rank died, or did not call this within the group's timeout.
        """
        exchange = self._exchange
        rank, ranks = exchange.rank, exchange.ranks
        summary, parts = self._summary(sequences, lengths, supervised, costs, together, prompts)
        everybody = [unpack_plain(memoryview(each)) for each in exchange.swap([summary] * ranks)]
        for number, each in enumerate(everybody):
            if "problem" in each:
                raise SampleError(f"rank {number}: {each['problem']}")
            if each["options"] != everybody[0]["options"]:
                raise MismatchError(
                    f"rank 0 rebalances with {everybody[0]['options']}, and rank {number} with "
                    f"{each['options']}; make them equal"
                )
        columns: dict[str, Any] = {
            name: None
            if everybody[0][name] is None
            else np.concatenate([e[name] for e in everybody])
            for name in ("lengths", "supervised", "costs", "together", "prompts")
        }
        counts = [len(each["lengths"]) for each in everybody]
        first = np.cumsum([0, *counts])
        plan = plan_rebalance(
            columns["lengths"],
            ranks=ranks,
            max_tokens=self.max_tokens,
            packed=self.packed,
            cost=self.cost,
            costs=columns["costs"],
            together=columns["together"],
            prompts=columns["prompts"],
            multiple_of=self.multiple_of,
        )
        target = plan.rank[first[rank] : first[rank + 1]]
        received: dict[int, Any] = {}
        sent = [
            b"".join(_framed(parts[n]) for n in np.flatnonzero(target == r)) for r in range(ranks)
        ]
        for source, data in enumerate(exchange.swap(sent)):
            own = first[source] + np.flatnonzero(
                plan.rank[first[source] : first[source + 1]] == rank
            )
            received.update(zip(own.tolist(), _unframed(data)))
        return RebalancedUpdate(
            plan,
            received,
            first=first,
            supervised=columns["supervised"],
            exchange=exchange,
        )

    @cached_property
    def _exchange(self) -> AllToAll:
        return AllToAll(self.group)

    def _summary(self, sequences: Any, *columns: Any) -> tuple[bytes, list[bytes]]:
        """What all ranks have to know of this one's sequences, and each of these as bytes. An error
        is part of it, because the other ranks wait."""
        try:
            parts = [pack_plain(s, f"sequence {n}", exact=False) for n, s in enumerate(sequences)]
            lengths, supervised, costs, together, prompts = (
                None if column is None else np.asarray(column) for column in columns
            )
            if lengths is None:
                lengths = np.array([length_of(s) for s in sequences], np.int64)
            found = {
                "lengths": lengths,
                "supervised": lengths if supervised is None else supervised,
                "costs": costs,
                "together": together,
                "prompts": prompts,
            }
            for name, column in found.items():
                if column is not None and column.shape != (len(sequences),):
                    raise SampleError(
                        f"{name} of shape {column.shape} for {len(sequences)} sequences; pass one "
                        "for each"
                    )
            given = [name for name, column in found.items() if column is not None]
            options = f"{self._options()} and {', '.join(given)}"
            return pack_plain({**found, "options": options}, "the lengths"), parts
        except Exception as error:
            problem = str(error) if isinstance(error, EvenstepError) else described(error)
            return pack_plain({"problem": problem}, "what is wrong"), []

    def _options(self) -> str:
        names = ("max_tokens", "packed", "cost", "multiple_of")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "little") + part


def _unframed(data: bytes) -> list[Any]:
    found, at, view = [], 0, memoryview(data)
    while at < len(view):
        size = int.from_bytes(view[at : at + 8], "little")
        found.append(unpack_plain(view[at + 8 : at + 8 + size]))
        at += 8 + size
    return found
