"""A whole epoch of W ranks in one process, over lengths alone.

The ranks are the `RankProtocol` machines that also drive the loader. Only the transport differs: an
exchange is a list of bytes. So a simulation makes the steps that a training job with the same
shards, policy, buffer and seed would make.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.policy import Policy
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.too_long import too_long
from evenstep.plan.value_checks import AUTO, check_at_least
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.wire import Exchanged
from evenstep.tools.simulate.rank import SimulatedEpoch, SimulatedRank
from evenstep.tools.simulate.result import SimulationResult, measure
from evenstep.tools.simulate.yardsticks import Yardstick


def deal(count: int, world_size: int, seed: int = 0) -> list[Int64Array]:
    """Shards a data set as a distributed sampler does: shuffles it, repeats the first few samples
    so that all ranks get equally many, and gives rank r every W-th sample from the r-th on.

    Returns:
        For each rank, [ceil(count / world_size)] int64 identities from 0 to ``count - 1``.
    """
    check_at_least(1, count=count, world_size=world_size)
    order = generator(seed, RandomStream.SIMULATED_SHARDS).permutation(count)
    even = np.resize(order, -(-count // world_size) * world_size)
    return [even[rank::world_size] for rank in range(world_size)]


def simulate(
    policy: Policy,
    lengths_per_rank: Sequence[Int64Array],
    *,
    buffer_size: int | str = AUTO,
    accumulate: int = 1,
    update_tokens: int = 0,
    seed: int = 0,
    cost: Cost | None = None,
    identities: Sequence[Int64Array] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Runs one epoch to its end.

    Args:
        policy: the policy to measure.
        lengths_per_rank: for each rank, [samples] int64 lengths in order of arrival; or, where
            samples have images, [4, samples] lengths, patches, images and patch pairs. Ranks may
            have unequally many, or none. A `Yardstick` deals them out anew, each identity once.
        buffer_size: samples a rank may hold in its window; "auto": see `DataLoader`.
        accumulate: steps whose gradients are added up before the optimizer steps: an update.
        update_tokens: real tokens that it should have on all ranks; 0 where groups decide.
        seed: seed of the epoch.
        cost: cost model behind imbalance and efficiency; by default the policy's own.
        identities: for each rank, [samples] int64 identity of each sample. By default all differ.
        progress: called after each round with samples emitted so far and samples in all.

    Raises:
        ConfigurationError: no samples, an argument out of range, or ``max_tokens="auto"``.
        SampleError: a sample is longer than the policy accepts.
    """
    epoch = run_epoch(
        policy,
        lengths_per_rank,
        buffer_size=buffer_size,
        accumulate=accumulate,
        update_tokens=update_tokens,
        seed=seed,
        identities=identities,
        progress=progress,
    )
    return measure(policy, cost or policy.cost, epoch, accumulate)


def run_epoch(
    policy: Policy,
    lengths_per_rank: Sequence[Int64Array],
    *,
    seed: int = 0,
    identities: Sequence[Int64Array] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> SimulatedEpoch:
    """Runs one epoch to its end, to look at its steps. Arguments are those of `simulate`.

    Args:
        options: others of `EpochOptions`.
    """
    shards = [np.atleast_2d(np.asarray(each, np.int64)) for each in lengths_per_rank]
    identities = _identities(policy, shards, identities)
    spent: list[float] = []  # seconds in the policy
    own_policies: Sequence[Policy] = [policy] * len(shards)
    if isinstance(policy, Yardstick):
        names, first = np.unique(np.concatenate(list(identities)), return_index=True)
        rows = np.concatenate(shards, axis=1)[:, first]
        begin = time.thread_time()
        dealt = policy.dealt(rows[0], len(shards), seed)
        # Every rank plans the whole epoch.
        spent.append((time.thread_time() - begin) * len(shards))
        own_policies = dealt
        identities = [names[own.groups.members] for own in dealt]
        shards = [rows[:, own.groups.members] for own in dealt]
    total = sum(shard.shape[1] for shard in shards)
    stream, pooled = _stream(shards, identities) if policy.deals_on_demand else (None, None)
    ranks = []
    for number, (own, shard) in enumerate(zip(own_policies, shards)):
        own_options = EpochOptions(
            policy=_clocked(own, spent),
            world_size=len(shards),
            seed=seed,
            **{"buffer_size": AUTO, **options},
        )
        entries = None if stream is None else stream.shape[1]
        protocol = RankProtocol(own_options, rank=number, share=shard.shape[1], entries=entries)
        ranks.append(SimulatedRank(protocol, shard if stream is None else shard[:, :0], stream))
    while not _all_finished(ranks):
        for rank in ranks:
            rank.fill()
        messages = Exchanged([rank.outgoing() for rank in ranks])
        for rank in ranks:
            rank.incoming(messages)
        if progress is not None:
            progress(sum(rank.protocol.emitted for rank in ranks), total)
    if pooled is not None:
        identities = [pooled[rank.entries] for rank in ranks]
    return SimulatedEpoch(ranks=ranks, identities=identities, plan_seconds=sum(spent))


def _identities(
    policy: Policy, shards: Sequence[Int64Array], given: Sequence[Int64Array] | None
) -> Sequence[Int64Array]:
    """For each rank, [samples] the identity of each, for shards that `policy` can be run on."""
    sizes = [shard.shape[1] for shard in shards]
    if not sum(sizes):
        raise ConfigurationError(f"{len(shards)} ranks and no samples; give at least one sample")
    if policy.fits_memory:
        raise ConfigurationError(
            'max_tokens="auto" is found while training; simulate the number of tokens that it found'
        )
    _check_lengths(policy, [shard[0] for shard in shards])
    if given is None:
        return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    if [len(shard) for shard in given] != sizes:
        raise ConfigurationError(
            f"{[len(shard) for shard in given]} identities for {sizes} lengths per rank"
        )
    return given


def _stream(
    shards: Sequence[Int64Array], identities: Sequence[Int64Array]
) -> tuple[Int64Array, Int64Array]:
    """All ranks' samples as the one stream that is dealt out to them, and their identities: in the
    order in which fixed shares would have been dealt, first samples of all ranks first."""
    turns = np.concatenate([np.arange(shard.shape[1]) for shard in shards])
    order = np.argsort(turns, kind="stable")
    pooled = np.concatenate(list(identities))[order]
    # Without those that the sampler repeats: a shared stream needs none to be dealt out.
    kept = np.sort(np.unique(pooled, return_index=True)[1])
    return np.concatenate(shards, axis=1)[:, order[kept]], pooled[kept]


def _check_lengths(policy: Policy, shards: Sequence[Int64Array]) -> None:
    limit = policy.max_length
    for rank, shard in enumerate(shards):
        if len(shard) and shard.min() < 1:
            raise ConfigurationError(f"rank {rank} has a length of {shard.min()}, below 1")
        if limit is not None and len(shard) and shard.max() > limit:
            position = int(shard.argmax())
            name = f"sample {position} of rank {rank}"
            raise too_long(name, int(shard[position]), limit)


def _clocked(policy: Policy, spent: list[float]) -> Policy:
    """The same policy, which also notes the seconds of each call."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            begin = time.thread_time()
            found = function(*given)
            spent.append(time.thread_time() - begin)
            return found

        return called

    noting = copy.copy(policy)
    for name in ("propose", "settle"):
        object.__setattr__(noting, name, timed(getattr(policy, name)))
    return noting


def _all_finished(ranks: Sequence[SimulatedRank]) -> bool:
    finished = {rank.protocol.finished for rank in ranks}
    if len(finished) > 1:
        raise InvariantError("some ranks have finished the epoch and others have not")
    return finished.pop()
