"""`bring_embeddings`: outputs of images from the ranks that encoded them to those that need them.

The plan of a service's subplan says both sides of every transfer, so that ranks exchange only how
many rows each image became, and the rows. A gradient takes the same way back: that of an image
which several ranks have received is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, PeerError, SampleError
from evenstep.loader.transport.rank_exchange import brief, device_of, place_in_group

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_HEAD = 4  # numbers before the sizes: a problem, whether it needs gradients, type and width
_NO_TYPE = "a type that is none of float32, bfloat16, float16, float64"
_NOT_2D = "embeddings that are not [rows, width], all of one width and type"
_NO_SIZES = (
    "no sizes=, and rows that its images' lengths do not divide evenly, or a subplan without "
    "one_by_one"
)
_WRONG_SIZES = "sizes= that are not one for each image, or do not add up to its rows"
_OTHER_COUNT = "another number of embeddings than its subplan has micro-batches"
_MISSING = "None for a micro-batch that has images"
_PROBLEMS = ("", _NO_TYPE, _NOT_2D, _NO_SIZES, _WRONG_SIZES, _OTHER_COUNT, _MISSING)


class Routes(Protocol):
    """What is read of an `evenstep.service.SubplanStep`, which explains each."""

    @property
    def samples(self) -> Sequence[Any]: ...
    @property
    def goes_to(self) -> Sequence[Int64Array]: ...
    @property
    def comes_from(self) -> Sequence[Int64Array]: ...
    @property
    def made_by(self) -> Int64Array: ...
    @property
    def needed_by(self) -> Int64Array: ...


def bring_embeddings(
    embeddings: Sequence[torch.Tensor | None],
    routes: Routes,
    *,
    sizes: Sequence[Sequence[int]] | None = None,
    group: dist.ProcessGroup | None = None,
) -> list[torch.Tensor]:
    """The embeddings of this rank's images, which others may have made. All ranks of the group call
    it in every step, and run the backward of its result, also those without an image: a rank whose
    loss does not use a result adds ``0 * result.sum()`` to it. Differentiable.

    Args:
        embeddings: [micro-batches of the subplan] [rows, width], of its images in order; None for
            a micro-batch without images.
        routes: this rank's ``step.subplans[name]``, of a subplan distributed at WORLD.
        sizes: [micro-batches of the subplan] [images] rows of each; by default rows are shared out
            by the images' lengths in the plan, as those of Qwen-VL's tower are.
        group: the clients of the mesh; the default group when None, or this process alone where
            there is none.

    Returns:
        [micro-batches of the plan] [rows, width], of the images of each micro-batch: those of its
        first sample in order, then those of the next; [0, width] where it has none, or where this
        rank's stage of the pipeline needs none.

    Raises:
        ConfigurationError: several ranks encode the same images.
        SampleError: what a rank has passed is not possible. All ranks raise it.
        PeerError: a rank died, or did not call this within the group's timeout.
    """
    if routes.made_by.shape[1] != 1:
        raise ConfigurationError(
            f"{routes.made_by.shape[1]} ranks work on each bucket of the subplan, and would make "
            'the same embeddings; distribute it at "WORLD"'
        )
    swap = _Swap(group)
    images, sent = _sent(routes, swap)
    arrival, received, micro_batches = _received(routes, swap)
    flat, rows, problem = _own(embeddings, routes, sizes)
    head = [_PROBLEMS.index(problem), 0, -1, -1]
    if flat is not None:
        needed = flat.requires_grad and torch.is_grad_enabled()
        head[1:] = int(needed), _TYPES.index(flat.dtype), flat.shape[1]
    heads, their_rows = swap.sizes(head, rows[images], sent, received)
    kind, width = _agreed(heads)
    if flat is None:
        flat = torch.zeros(0, max(width, 0), dtype=_TYPES[max(kind, 0)], device=swap.device)
    if torch.is_grad_enabled() and (heads[:, 1].any() or kind < 0) and not flat.requires_grad:
        flat = flat.detach().requires_grad_()  # so that its backward runs as on all ranks
    leaving = flat.to(swap.device)[_rows_of(images, rows).to(swap.device)]
    outgoing, incoming = _sums(rows[images], sent), _sums(their_rows, received)
    arrived = _Exchange.apply(leaving, outgoing, incoming, swap)  # type: ignore[no-untyped-call]
    ordered = arrived[_rows_of(arrival, their_rows).to(swap.device)].to(flat.device)
    return list(ordered.split(_sums(their_rows[arrival], micro_batches)))


def _agreed(heads: Int64Array) -> tuple[int, int]:
    """The type, by number, and width of all ranks' embeddings; -1 if none has any.

    Args:
        heads: [ranks, 4] problem, whether it needs a backward, type and width of each.

    Raises:
        SampleError: a rank has a problem, or they differ.
    """
    for rank in np.flatnonzero(heads[:, 0]).tolist():
        raise SampleError(f"rank {rank} of the group has {_PROBLEMS[heads[rank, 0]]}")
    kind, width = heads[:, 2:].max(axis=0).tolist()
    same = np.isin(heads[:, 2], (-1, kind)) & np.isin(heads[:, 3], (-1, width))
    if not same.all():
        rank = int(same.argmin())
        raise SampleError(
            f"rank {rank} of the group has embeddings of {_TYPES[heads[rank, 2]]} and width "
            f"{heads[rank, 3]}, and another has {_TYPES[kind]} or width {width}; make them alike"
        )
    return kind, width


class _Swap:
    """Collectives of a group."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        place = place_in_group(group, 1)
        self.ranks = place.world_size
        self._group = group
        alone = self.ranks == 1 and not dist.is_initialized()
        self.device = torch.device("cpu") if alone else device_of(group)
        globally = [0] if alone else dist.get_process_group_ranks(group or dist.group.WORLD)
        self.rank = globally[place.rank]
        self._place = {rank: number for number, rank in enumerate(globally)}

    def places(self, ranks: Int64Array) -> Int64Array:
        """Numbers in the group of some global ranks.

        Raises:
            ConfigurationError: one is not in the group.
        """
        missing = set(ranks.ravel().tolist()) - self._place.keys()
        if missing:
            raise ConfigurationError(
                f"rank {min(missing)} of the job's mesh is not in the process group; pass group= a "
                f"group of all {len(missing | self._place.keys()):,} clients"
            )
        found = [self._place[rank] for rank in ranks.ravel().tolist()]
        return np.array(found, np.int64).reshape(ranks.shape)

    def rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """
        Args:
            sent, received: [ranks] rows to each and from each.
        """
        if self.ranks == 1:
            return rows.clone()
        out = rows.new_empty(sum(received), *rows.shape[1:])
        try:
            dist.all_to_all_single(out, rows.contiguous(), received, sent, group=self._group)
        except RuntimeError as error:
            raise PeerError(
                "embeddings could not be exchanged: a rank died, or did not call bring_embeddings "
                f"or its backward within the group's timeout; restart the job ({brief(error)})"
            ) from error
        return out

    def sizes(
        self, head: list[int], rows: Int64Array, sent: Int64Array, received: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """
        Args:
            rows: of each image that is sent, rank after rank.
            sent, received: [ranks] images to each and from each.

        Returns:
            [ranks, 4] heads, and the rows of each image that is received.
        """
        cut = np.split(rows, sent.cumsum()[:-1])
        parts = np.concatenate([part for each in cut for part in (head, each)]).astype(np.int64)
        out = self.rows(
            torch.from_numpy(parts).to(self.device),
            (sent + _HEAD).tolist(),
            (received + _HEAD).tolist(),
        )
        by_rank = np.split(out.cpu().numpy(), (received + _HEAD).cumsum()[:-1])
        heads = np.stack([each[:_HEAD] for each in by_rank])
        return heads, np.concatenate([each[_HEAD:] for each in by_rank])


class _Exchange(torch.autograd.Function):
    """`_Swap.rows`; its gradient goes back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], swap: _Swap
    ) -> torch.Tensor:
        ctx.way = sent, received, swap
        return swap.rows(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sent, received, swap = ctx.way
        return swap.rows(gradient, received, sent), None, None, None


def _sent(routes: Routes, swap: _Swap) -> tuple[Int64Array, Int64Array]:
    """This rank's images, from 0, by the rank that needs them, in order, once for each that does;
    and [ranks] images to each."""
    needed_by = swap.places(routes.needed_by)  # [buckets, clients]
    goes_to = np.concatenate([np.empty((0, 3), np.int64), *routes.goes_to])
    ranks = needed_by[goes_to[:, 0]].ravel()  # [images x clients]
    images = np.arange(len(goes_to)).repeat(needed_by.shape[1])
    return images[ranks.argsort(kind="stable")], np.bincount(ranks, minlength=swap.ranks)


def _received(routes: Routes, swap: _Swap) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Of each image that this rank receives, in the order of the plan, its number among those that
    arrive; [ranks] images from each; and [micro-batches of the plan] images of each."""
    needs = bool((routes.needed_by == swap.rank).any())
    parts = [each[each[:, 0] >= 0] if needs else each[:0] for each in routes.comes_from]
    bucket, micro_batch, index = np.concatenate([np.empty((0, 3), np.int64), *parts]).T
    ranks = swap.places(routes.made_by[:, 0])[bucket]
    arrival = np.lexsort((index, micro_batch, ranks)).argsort()
    counts = np.bincount(ranks, minlength=swap.ranks)
    return arrival, counts, np.array([len(each) for each in parts], np.int64)


def _own(
    embeddings: Sequence[torch.Tensor | None],
    routes: Routes,
    sizes: Sequence[Sequence[int]] | None,
) -> tuple[torch.Tensor | None, Int64Array, str]:
    """This rank's embeddings, None if it has none; [images] rows of each; and what is wrong."""
    images = [len(each) for each in routes.goes_to]
    nothing = np.zeros(sum(images), np.int64)
    made = [each for each in embeddings if each is not None]
    if len(embeddings) != len(images):
        return None, nothing, _OTHER_COUNT
    if any(each.ndim != 2 or each.shape[1:] != made[0].shape[1:] for each in made):
        return None, nothing, _NOT_2D
    if any(each.dtype not in _TYPES or each.dtype != made[0].dtype for each in made):
        return None, nothing, _NO_TYPE
    if any(each is None and count for each, count in zip(embeddings, images)):
        return None, nothing, _MISSING
    rows: list[Int64Array] = []
    for k, each in enumerate(embeddings):
        count = 0 if each is None else len(each)
        if sizes is not None:
            own = np.asarray(sizes[k], np.int64)
            if len(own) != images[k] or own.sum() != count or (own < 0).any():
                return None, nothing, _WRONG_SIZES
        else:
            lengths, *others = routes.samples[k].lengths.values()
            own = lengths * count // max(int(lengths.sum()), 1)
            if others or (own * lengths.sum() != lengths * count).any() or own.sum() != count:
                return None, nothing, _NO_SIZES
        rows.append(own)
    return torch.cat(made) if made else None, np.concatenate([nothing[:0], *rows]), ""


def _rows_of(images: Int64Array, sizes: Int64Array) -> torch.Tensor:
    """Row numbers of images in some order.

    Args:
        images: numbers of images.
        sizes: [all images] rows of each.
    """
    begins, counts = (sizes.cumsum() - sizes)[images], sizes[images]
    within = np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
    return torch.from_numpy(begins.repeat(counts) + within)


def _sums(sizes: Int64Array, counts: Int64Array) -> list[int]:
    """Rows of consecutive images, as many in each part as it says."""
    ends = np.append(0, sizes.cumsum())[np.append(0, counts.cumsum())]
    rows: list[int] = np.diff(ends).tolist()
    return rows
