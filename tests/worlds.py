"""A job in one process: ranks that exchange messages in memory, are stopped at any step, and resume
from what they wrote down.

A rank's source is the list of lengths of its share. How many samples come at a time, and whether
they come before they are asked for, is up to the caller; so is when the ranks are stopped: leave
the loop over `World.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from evenstep.plan import Even, FixedBatch, Groups, Plan, Policy, Proposal, TokenBudget
from evenstep.plan.epoch import Progress
from evenstep.plan.label_reading import FIRST, UNSHIFTED
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.policies.sequence_packing import SequencePacking
from evenstep.plan.rng import generator
from evenstep.protocol import EpochOptions, RankProtocol
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.receipts import Receipt, RoundTotals
from evenstep.protocol.window_buffer import RoundStart
from few_steps import FewSteps

NOBODY = np.empty(0, np.int64)


@dataclass(frozen=True)
class Arbitrary(Policy):
    """Plans any groups that the contract of policies allows, and returns the rest."""

    salt: int = 0
    micro_batches: int = 1

    def propose(self, window):
        draw = generator(self.salt, window.round, len(window))
        members = draw.permutation(len(window))
        inner = np.flatnonzero(draw.integers(0, 2, len(window) - 1)) + 1
        offsets = np.concatenate([[0], inner, [len(window)]]).astype(np.int64)
        return Proposal(np.array([len(offsets) - 1]), Groups(members, offsets), window)

    def settle(self, proposal, messages, rank):
        counts = messages[:, 0]
        steps = int(counts[counts > 0].min())
        count = min(len(proposal.groups), steps * self.micro_batches)
        offsets = np.arange(steps + 1) * count // steps
        return Plan(proposal.groups.take(np.arange(count)), steps=offsets)


KEEPING = st.one_of(
    st.builds(FixedBatch, st.integers(1, 5)),
    st.builds(
        TokenBudget,
        st.integers(30, 200),
        max_wait=st.integers(0, 3),
        spread=st.booleans(),
    ),
    st.builds(FewSteps, st.integers(30, 200), steps=st.integers(1, 4), max_wait=st.integers(0, 3)),
    st.builds(Even, st.integers(30, 200), max_wait=st.integers(0, 3), packed=st.booleans()),
    st.builds(Even, st.just("auto"), packed=st.booleans()),
    st.builds(
        PoolSort,
        st.integers(1, 5),
    ),
    st.builds(SequencePacking, st.integers(30, 200), max_wait=st.integers(0, 3)),
    st.builds(Arbitrary, st.integers(0, 5), st.integers(1, 3)),
    st.builds(
        WorkloadPacking,
        st.integers(2, 30),
        micro_batches=st.integers(1, 3),
        max_tokens=st.integers(33, 60),
        max_delay=st.none() | st.integers(0, 4),
    ),
)
"""Policies that drop no sample."""

POLICIES = st.one_of(KEEPING, st.builds(FixedBatch, st.integers(1, 5), drop_last=st.just(True)))

SHARDS = st.lists(st.lists(st.integers(1, 30), max_size=40), min_size=1, max_size=8)


def columns(lengths: Sequence[int]) -> np.ndarray:
    """What is measured of samples. The labels of a third of them, and of some others, show
    something of how models read them."""
    length = np.array(lengths, np.int64)
    shows = FIRST * (length % 3 == 1) + UNSHIFTED * (length % 11 == 5)
    return np.stack([length, length // 2, *[length * 0] * 3, shows, length * 0], axis=1)


def arrivals(random) -> dict[str, Callable]:
    """Arguments of `World` for samples that come in any chunks, asked for or not."""
    return {
        "chunk": lambda: random.randint(1, 7),
        "pushes": lambda: random.random() < 0.3,
    }


@dataclass(frozen=True)
class Checkpoint:
    """What one rank writes down after a step."""

    start: RoundStart
    received: int
    """Steps of the round that the trainer has received."""
    unfinished: np.ndarray
    """Arrival numbers of the window that it has not received."""
    onward: int
    """Neither this number nor a later one has been in a window, now or in the runs before."""
    early: np.ndarray
    """Arrival numbers below `onward` that wait outside the window: a run before had them in its
    own, larger window."""

    @property
    def step(self) -> int:
        return self.start.step + self.received

    @property
    def rest(self) -> np.ndarray:
        """All arrival numbers below `onward` that are to be trained on."""
        return np.concatenate([self.unfinished, self.early])

    @property
    def progress(self) -> Progress:
        return Progress(self.onward, self.rest)

    def rewound(self) -> RoundStart:
        """For ranks that resume with windows of another size: a new round without samples."""
        return RoundStart(
            round=self.start.round + 1,
            step=self.step,
            taken=0,
            numbers=NOBODY,
            columns=np.empty((7, 0), np.int64),
            ages=NOBODY,
            labels=self.start.labels,
        )


@dataclass
class World:
    """One run of an epoch, or of what remains of one."""

    policy: Policy | list[Policy]
    """The same on all ranks, or one for each."""
    shards: Sequence[Sequence[int]]
    """Lengths of each rank's samples, by arrival number."""
    buffer_size: int
    exhausted: str = "pad"
    shares: Sequence[int | None] | None = None
    """By rank, the size of its share that it is given."""
    starts: Sequence[RoundStart | None] | None = None
    early: Sequence[np.ndarray] | None = None
    """By rank, arrival numbers to receive before `onward`."""
    onward: Sequence[int] | None = None
    """By rank, the arrival number from which on to receive all."""
    missing: Sequence[Set[int]] | None = None
    """By rank, arrival numbers of bad samples, which are skipped."""
    options: Sequence[dict] | None = None
    chunk: Callable[[], int] = lambda: 3
    """Samples in each delivery."""
    pushes: Callable[[], bool] = lambda: False
    """Whether a rank is given a chunk that it has not asked for."""
    unfinished: Sequence[np.ndarray] | None = None
    """By rank, arrival numbers of `starts` that are still to be trained on. The others are not
    received again, so a rank that has trained on all of them has no sample at hand."""
    received: int = 0
    """Steps of the first round that the trainer received before."""
    accumulate: int = 1
    sizes: Sequence[tuple[int, int]] = ()
    fits: Callable[[int, int], int] = lambda rank, tokens: 0
    """What a rank finds to fit once it has trained on groups of so many tokens; 0 for nothing."""
    lends: bool = False
    """Whether samples are lent to ranks that have none. A sample is lent as "rank:number"."""
    exchanges: int = field(default=0, init=False)
    lent: list[tuple[int, int, int]] = field(default_factory=list, init=False)
    """Round, rank and arrival number of each sample that a rank was asked to lend."""

    def __post_init__(self) -> None:
        world = range(len(self.shards))
        self.early = self.early or [NOBODY for _ in world]
        self.onward = self.onward or [0 for _ in world]
        self._sources = [
            np.concatenate([early, np.arange(onward, len(shard))])
            for early, onward, shard in zip(self.early, self.onward, self.shards)
        ]
        if self.missing is not None:
            self._sources = [
                np.array([number for number in source if number not in bad], np.int64)
                for source, bad in zip(self._sources, self.missing)
            ]
        self._ended = [False for _ in world]
        self.has_filler_sample = [
            len(self.unfinished[rank]) > 0 if self.unfinished else False for rank in world
        ]
        self.machines = [
            RankProtocol(
                EpochOptions(
                    policy=self.policy[rank] if isinstance(self.policy, list) else self.policy,
                    world_size=len(self.shards),
                    buffer_size=self.buffer_size,
                    exhausted=self.exhausted,
                    accumulate=self.accumulate,
                    sizes=self.sizes,
                    others=self.options[rank] if self.options else {},
                ),
                rank=rank,
                share=self.shares[rank] if self.shares else None,
                start=self.starts[rank] if self.starts else None,
                has_filler_sample=self.has_filler_sample[rank],
            )
            for rank in world
        ]

    def _deliver(self, rank: int) -> None:
        size, source = self.chunk(), self._sources[rank]
        part, self._sources[rank] = source[:size], source[size:]
        machine = self.machines[rank]
        if not len(part):
            machine.end_of_source()
            self._ended[rank] = True
            return
        lengths = columns([self.shards[rank][number] for number in part])
        given = machine.receive(lengths, part if self.starts or self.missing else None)
        assert given.tolist() == part.tolist()
        self.has_filler_sample[rank] = True

    def _lend(self, rank: int) -> None:
        machine = self.machines[rank]
        number = machine.lends
        self.lent.append((machine.rounds, rank, number))
        start = self.starts[rank] if self.starts else None
        if start is not None and number in start.numbers and self.unfinished is not None:
            left = self.unfinished[rank]
            if not len(left):
                return  # and no step of this round is still to be filled
            if number not in left:
                number = min(left, key=lambda left: self.shards[rank][left])
        machine.lending.lent = f"{rank}:{number}".encode()
        assert machine.lends is None

    def rounds(self) -> Iterator[list[list[PlannedStep]]]:
        """Every exchange's steps, by rank."""
        machines, skip = self.machines, self.received
        while not all(machine.finished for machine in machines):
            # Lemma 3: as long as any rank continues, all do.
            assert not any(machine.finished for machine in machines)
            for rank, machine in enumerate(machines):
                while machine.wanted:
                    self._deliver(rank)
                if not self._ended[rank] and self.pushes():
                    self._deliver(rank)
                if self.lends and machine.lends is not None:
                    self._lend(rank)
            messages = [machine.outgoing() for machine in machines]
            made = [machine.incoming(messages) for machine in machines]
            for machine, has_own, steps in zip(machines, self.has_filler_sample, made):
                # A rank has a filler sample by the time that it needs one.
                if self.lends and any(step.filler for step in steps[skip:]):
                    assert has_own or machine.lending.borrowed
            for rank, steps in enumerate(made):
                if steps and (fits := steps[0].round.start.fits):
                    most = fits[0].most
                    machines[rank].agreed.found = most, self.fits(rank, most)
            skip = 0 if made[0] else skip
            for machine in machines:
                # Lemma 1, from the outside.
                parts = machine.emitted + machine.dropped + machine.undelivered
                assert machine.received == parts + machine.pending
            self.exchanges += 1
            yield made

    def steps(self) -> Iterator[tuple[PlannedStep, ...]]:
        """Every step, as all ranks see it."""
        for made in self.rounds():
            yield from zip(*made, strict=True)

    def checkpoints(self, last: Sequence[PlannedStep]) -> list[Checkpoint]:
        """What the ranks write down after a step."""
        made = []
        for rank, step in enumerate(last):
            start, received, groups = step.round.start, step.index_in_round + 1, step.round.groups
            trained = groups.members[
                : 0 if step.filler else groups.offsets[step.round.steps[received]]
            ]
            early = self.early[rank]
            made.append(
                Checkpoint(
                    start=start,
                    received=received,
                    unfinished=np.setdiff1d(start.numbers, trained),
                    onward=max(start.taken, self.onward[rank]),
                    early=early[early >= start.taken],
                )
            )
        return made

    def resumed(self, checkpoints: Sequence[Checkpoint], **changes) -> World:
        """The same ranks, resumed exactly where they were stopped. The current round is planned
        again: skip its steps that were received."""
        return World(
            policy=self.policy,
            shards=self.shards,
            exhausted=self.exhausted,
            shares=self.shares,
            missing=self.missing,
            starts=[one.start for one in checkpoints],
            unfinished=[one.unfinished for one in checkpoints],
            received=checkpoints[0].received,
            accumulate=self.accumulate,
            sizes=self.sizes,
            fits=self.fits,
            early=[one.early for one in checkpoints],
            onward=[one.onward for one in checkpoints],
            **{"buffer_size": self.buffer_size, **changes},
        )

    def rewindowed(self, checkpoints: Sequence[Checkpoint], buffer_size: int, **changes) -> World:
        """The same ranks, resumed with windows of another size."""
        return World(
            policy=self.policy,
            shards=self.shards,
            exhausted=self.exhausted,
            shares=self.shares,
            missing=self.missing,
            starts=[one.rewound() for one in checkpoints],
            early=[one.rest for one in checkpoints],
            onward=[one.onward for one in checkpoints],
            buffer_size=buffer_size,
            **changes,
        )


def visible(step: PlannedStep) -> tuple:
    """All that a trainer can see of a step, to be compared."""
    totals = step.totals
    return (
        step.index,
        step.members.tolist(),
        totals.samples.tolist(),
        totals.tokens.tolist(),
        totals.padded_tokens.tolist(),
        totals.supervised_tokens.tolist(),
        totals.cost.tolist(),
        step.filler,
    )


def play(policy, shards, **options):
    """Runs an epoch. Returns the machines, each rank's steps, and the number of exchanges."""
    world = World(policy, shards, **options)
    steps: list[list[PlannedStep]] = [[] for _ in shards]
    for made in world.rounds():
        for own, new in zip(steps, made):
            own += new
    return world.machines, steps, world.exchanges


def totals_of(receipts: Sequence[Receipt]) -> RoundTotals:
    """What all ranks learn of a round in which each of them trains on all of its window."""
    return RoundTotals.decode([receipt.encode() for receipt in receipts])
