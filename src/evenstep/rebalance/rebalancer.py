"""`Rebalancer`: sequences to the ranks that train on them, after all lengths are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from evenstep.arrays import Int64Array
from evenstep.batch.measure import length_of
from evenstep.cost import Cost
from evenstep.errors import EvenstepError, MismatchError, SampleError, described
from evenstep.loader.transport.plain_values import pack_plain, unpack_plain
from evenstep.plan.rebalance import plan_rebalance
from evenstep.plan.rebalance.rebalancing import Rebalancing, flattened
from evenstep.plan.value_checks import check_at_least, check_one_of
from evenstep.rebalance.all_to_all import AllToAll

MEANS = ("token", "sequence")
_COLUMNS = ("lengths", "supervised", "together", "prompts")


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
        together: npt.ArrayLike | None = None,
        prompts: npt.ArrayLike | None = None,
    ) -> RebalancedUpdate:
        """Exchanges the sequences of an update. All ranks call it together.

        Args:
            sequences: those that this rank has, as mappings of tensors, arrays, numbers and text.
            lengths: [sequences] tokens of each; None counts ``input_ids``.
            supervised: [sequences] tokens that the loss counts; None is all.
            together, prompts: [sequences] see `evenstep.plan.rebalance.plan_rebalance`.

        Raises:
            ConfigurationError, SampleError: on all ranks; see `plan_rebalance`.
            MismatchError: ranks have different options.
            PeerError: a rank died, or did not call this within the group's timeout.
        """
        exchange = self._exchange
        rank, ranks = exchange.rank, exchange.ranks
        summary, parts = self._summary(sequences, lengths, supervised, together, prompts)
        columns, first = _joined(
            [unpack_plain(memoryview(each)) for each in exchange.swap([summary] * ranks)]
        )
        plan = plan_rebalance(
            columns["lengths"],
            ranks=ranks,
            max_tokens=self.max_tokens,
            packed=self.packed,
            cost=self.cost,
            together=columns["together"],
            prompts=columns["prompts"],
            multiple_of=self.multiple_of,
        )
        target = plan.rank[first[rank] : first[rank + 1]]
        received: dict[int, Any] = {}
        sent = [
            pack_plain([parts[n] for n in np.flatnonzero(target == r)], "sequences")
            for r in range(ranks)
        ]
        for source, data in enumerate(exchange.swap(sent)):
            own = first[source] + np.flatnonzero(
                plan.rank[first[source] : first[source + 1]] == rank
            )
            values = [unpack_plain(memoryview(each)) for each in unpack_plain(memoryview(data))]
            received.update(zip(own.tolist(), values))
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
            parts = [pack_plain(s, f"sequence {n}") for n, s in enumerate(sequences)]
            found = dict(zip(_COLUMNS, (None if c is None else np.asarray(c) for c in columns)))
            if found["lengths"] is None:
                found["lengths"] = np.array([length_of(s) for s in sequences], np.int64)
            if found["supervised"] is None:
                found["supervised"] = found["lengths"]
            for name, column in found.items():
                if column is not None and column.shape != (len(sequences),):
                    raise SampleError(
                        f"{name} of shape {column.shape} for {len(sequences)} sequences; pass one "
                        "for each"
                    )
            given = [name for name, column in found.items() if column is not None]
            names = ("max_tokens", "packed", "cost", "multiple_of")
            options = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            options += f" and {', '.join(given)}"
            return pack_plain({**found, "options": options}, "the lengths"), parts
        except Exception as error:
            problem = str(error) if isinstance(error, EvenstepError) else described(error)
            return pack_plain({"problem": problem}, "what is wrong"), []


def _joined(everybody: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """All ranks' columns one after the other, and [ranks + 1] where each rank's begin.

    Raises:
        MismatchError: ranks have different options.
        SampleError: what a rank says is wrong.
    """
    for number, each in enumerate(everybody):
        if "problem" in each:
            raise SampleError(f"rank {number}: {each['problem']}")
        if each["options"] != everybody[0]["options"]:
            raise MismatchError(
                f"rank 0 rebalances with {everybody[0]['options']}, and rank {number} with "
                f"{each['options']}; make them equal"
            )
    columns = {
        name: None if everybody[0][name] is None else np.concatenate([e[name] for e in everybody])
        for name in _COLUMNS
    }
    return columns, np.cumsum([0, *(len(each["lengths"]) for each in everybody)])


class RebalancedUpdate:
    """The micro-batches of one rank. Every rank has equally many."""

    def __init__(
        self,
        plan: Rebalancing,
        sequences: dict[int, Any],
        *,
        first: Int64Array,
        supervised: Int64Array,
        exchange: AllToAll,
    ) -> None:
        """
        Args:
            sequences: those of this rank's micro-batches, by number.
            first: [ranks + 1] the number of the first sequence that each rank had.
            supervised: [sequences] tokens that the loss counts.
        """
        self.plan = plan
        self.numbers = plan.of_rank(exchange.rank)
        """[micro_batches] numbers of the sequences of each. Rank 0's sequences have the first
        numbers, then come those of rank 1, and so on."""
        self.micro_batches = [[sequences[n] for n in own.tolist()] for own in self.numbers]
        """[micro_batches] the sequences of each, tensors on the CPU. A micro-batch is empty only
        where there are fewer sequences than micro-batches: run another one with a loss of 0."""
        self._first, self._supervised = first, supervised
        self._exchange = exchange

    def loss_scales(self, mean: str) -> list[float]:
        """[micro_batches] the factor for the loss of each, with which the gradient, averaged over
        ranks, is that of one batch of all sequences.

        Args:
            mean: what the loss of a micro-batch is a mean over. "token": its supervised tokens, as
                in DAPO. "sequence": its sequences, as in GRPO, where each is a mean over its own
                tokens, and in Dr. GRPO, where each is a sum over a constant.
        """
        check_one_of(MEANS, mean=mean)
        counts = self._supervised if mean == "token" else np.ones_like(self._supervised)
        scales: list[float] = self.plan.loss_scales(counts)[self._exchange.rank].tolist()
        return scales

    def restore(self, values: Sequence[Sequence[Any]]) -> list[Any]:
        """Sends back what was computed of each sequence. All ranks call it together.

        Args:
            values: [micro_batches, sequences] one value for each sequence: tensors, arrays,
                numbers, text, or lists and dictionaries of these.

        Returns:
            [sequences] the values of those sequences that this rank had, in its order.

        Raises:
            ConfigurationError: there is not one value for each sequence.
            PeerError: see `Rebalancer.rebalance`.
        """
        flat, numbers = flattened(values, self.numbers), np.concatenate(self.numbers)
        owner = np.searchsorted(self._first, numbers, side="right") - 1
        parts = []
        for rank in range(self.plan.ranks):
            own = np.flatnonzero(owner == rank).tolist()
            found = {"numbers": numbers[own], "values": [flat[at] for at in own]}
            parts.append(pack_plain(found, "the values to restore"))
        restored: dict[int, Any] = {}
        for part in self._exchange.swap(parts):
            found = unpack_plain(memoryview(part))
            restored.update(zip(found["numbers"].tolist(), found["values"]))
        begin, end = self._first[self._exchange.rank :][:2].tolist()
        return [restored[number] for number in range(begin, end)]
