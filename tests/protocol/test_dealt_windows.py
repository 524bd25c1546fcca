"""Ranks that share one stream: every sample once, whoever draws it; resumed, the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan import Even, Policy, TokenBudget
from evenstep.plan.epoch import Stream
from evenstep.protocol import EpochOptions, RankProtocol, RoundStart
from evenstep.protocol.planned_step import PlannedStep
from worlds import visible

SEEDS = st.integers(0, 10**6)
POLICIES: st.SearchStrategy[Policy] = st.one_of(
    st.builds(Even, st.integers(30, 150)),
    st.builds(Even, st.integers(30, 150), packed=st.just(True)),
    st.builds(TokenBudget, st.integers(30, 150)),
)


class DealtWorld:
    """All ranks of an epoch over `lengths`, by entry of the stream, of which some are bad."""

    def __init__(
        self,
        policy: Policy,
        lengths: Sequence[int],
        ranks: int,
        *,
        buffer_size: int | str = 8,
        exhausted: str = "pad",
        bad: frozenset[int] = frozenset(),
        starts: Sequence[RoundStart | None] | None = None,
        chunk: Callable[[], int] = lambda: 3,
    ) -> None:
        self.lengths, self.bad, self.chunk = lengths, bad, chunk
        starts = starts or [None] * ranks
        self.machines = [
            RankProtocol(
                EpochOptions(
                    policy=policy, world_size=ranks, buffer_size=buffer_size, exhausted=exhausted
                ),
                rank=rank,
                entries=len(lengths),
                start=start,
            )
            for rank, start in enumerate(starts)
        ]
        # By rank, the entry of each arrival number, and how many have been received.
        self.entries: list[dict[int, int]] = []
        self.received: list[int] = []
        for start in starts:
            start = start or RoundStart.empty()
            queued = range(start.taken, start.taken + start.queued)
            numbers = [*start.numbers.tolist(), *queued]
            self.entries.append(dict(zip(numbers, start.entries.tolist(), strict=True)))
            self.received.append(start.taken)

    def _fill(self, rank: int) -> None:
        machine, entries = self.machines[rank], self.entries[rank]
        dealt = machine.newly_dealt()
        number = max([self.received[rank] - 1, *entries]) + 1
        for entry in [] if dealt is None else dealt.tolist():
            entries[number] = entry
            number += 1
        while machine.wanted:
            begin = self.received[rank]
            end = min(begin + self.chunk(), number)
            assert end > begin, "waits for samples that are not dealt"
            good = [one for one in range(begin, end) if entries[one] not in self.bad]
            lengths = [self.lengths[entries[one]] for one in good]
            columns = np.array([[length, length, 0] for length in lengths], np.int64)
            machine.receive(columns, np.array(good, np.int64), end=end)
            self.received[rank] = end

    def steps(self) -> Iterator[tuple[PlannedStep, ...]]:
        machines = self.machines
        while not machines[0].finished:
            for rank in range(len(machines)):
                self._fill(rank)
            messages = [machine.outgoing() for machine in machines]
            made = [machine.incoming(messages) for machine in machines]
            assert len({machine.finished for machine in machines}) == 1
            yield from zip(*made, strict=True)

    def trained(self, steps: Sequence[tuple[PlannedStep, ...]]) -> list[int]:
        """Entries trained on, in no particular order."""
        return [
            self.entries[rank][number]
            for made in steps
            for rank, step in enumerate(made)
            for number in step.members.tolist()
        ]


def some_lengths(seed: int, count: int) -> list[int]:
    draw = np.random.default_rng(seed)
    return np.where(draw.random(count) < 0.8, draw.integers(1, 12, count), 30).tolist()


@settings(max_examples=20)
@given(POLICIES, SEEDS, st.integers(0, 120), st.integers(1, 6), st.integers(1, 20), st.data())
def test_every_sample_comes_once_whatever_is_bad_and_however_it_arrives(
    policy: Policy, seed: int, count: int, ranks: int, buffer_size: int, data: st.DataObject
) -> None:
    lengths = some_lengths(seed, count)
    bad = frozenset(data.draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=count)))
    draw = np.random.default_rng(seed)
    world = DealtWorld(
        policy,
        lengths,
        ranks,
        buffer_size=buffer_size,
        bad=bad,
        exhausted=data.draw(st.sampled_from(["pad", "stop"])),
        chunk=lambda: int(draw.integers(1, 6)),
    )
    steps = list(world.steps())
    trained = world.trained(steps)
    undelivered = sum(machine.undelivered for machine in world.machines)
    assert len(trained) == len(set(trained))
    assert len(trained) + undelivered == count - len(bad & set(range(count)))
    assert undelivered == 0 or world.machines[0].options.exhausted == "stop"


@settings(max_examples=20)
@given(POLICIES, SEEDS, st.integers(1, 80), st.integers(1, 4), st.integers(1, 15), st.data())
def test_a_resume_makes_the_same_steps_again(
    policy: Policy, seed: int, count: int, ranks: int, buffer_size: int, data: st.DataObject
) -> None:
    lengths = some_lengths(seed, count)
    bad = frozenset(data.draw(st.sets(st.integers(0, count - 1), max_size=3)))
    whole = list(DealtWorld(policy, lengths, ranks, buffer_size=buffer_size, bad=bad).steps())
    if not whole:
        return
    at = data.draw(st.integers(0, len(whole) - 1))
    starts = [step.round.start for step in whole[at]]
    resumed = DealtWorld(
        policy, lengths, ranks, buffer_size=buffer_size, bad=bad, starts=starts, chunk=lambda: 1
    )
    expected = whole[starts[0].step :]
    assert [list(map(visible, made)) for made in resumed.steps()] == [
        list(map(visible, made)) for made in expected
    ]


@settings(max_examples=20)
@given(POLICIES, SEEDS, st.integers(1, 80), st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_what_is_left_can_be_dealt_to_any_number_of_ranks(
    policy: Policy, seed: int, count: int, worlds: list[int]
) -> None:
    """Chains of worlds, each stopped at the beginning of some round."""
    lengths, stream, trained = some_lengths(seed, count), Stream(count), []
    draw = np.random.default_rng(seed)
    for number, ranks in enumerate(worlds):
        positions = stream.positions(np.arange(len(stream)))
        world = DealtWorld(policy, [lengths[p] for p in positions], ranks)
        steps = list(world.steps())
        last = number == len(worlds) - 1 or not steps
        at = 0 if last else int(draw.integers(len(steps)))
        done = steps if last else steps[: steps[at][0].round.start.step]
        trained += positions[world.trained(done)].tolist()
        if last:
            break
        starts = [step.round.start for step in steps[at]]
        held = np.concatenate([start.entries for start in starts])
        stream = stream.rest(held, starts[0].next_entry)
    assert sorted(trained) == list(range(count))


def test_ranks_whose_samples_are_larger_draw_fewer_of_them() -> None:
    """With every other sample each, rank 0 would have twice the work: 10,000 tokens and 5,000."""
    lengths = [20 if entry % 2 == 0 else 10 for entry in range(1000)]
    world = DealtWorld(Even(100), lengths, 2, buffer_size=20)
    steps = list(world.steps())
    tokens = [sum(lengths[entry] for entry in world.entries[rank].values()) for rank in range(2)]
    assert sorted(world.trained(steps)) == list(range(1000))
    assert abs(tokens[0] - tokens[1]) <= 200


def test_windows_grow_to_the_tokens_that_the_policy_asks_for() -> None:
    policy = Even(200)
    assert policy.window_tokens is not None
    lengths = [10] * 12_000
    world = DealtWorld(policy, lengths, 2, buffer_size="auto", chunk=lambda: 500)
    sizes = dict.fromkeys(len(made[0].round.start.numbers) for made in world.steps())
    wanted = policy.window_tokens // 10
    # A step takes 20 samples, and a round's steps one of 8 groups of its window.
    assert list(sizes)[:6] == [32, 92, 152, 212, 332, 512]
    assert max(sizes) == wanted

    capped = DealtWorld(policy, lengths, 2, buffer_size="auto", chunk=lambda: 500)
    for machine in capped.machines:
        machine.room = 1500 + 100 * machine.rank
    windows = [made[0].round.start for made in capped.steps()]
    assert max(len(start.numbers) for start in windows) == 1500
    assert {start.window_limit for start in windows if start.round > 0} == {1500}


def test_what_a_rank_says_of_its_filler_sample_does_not_depend_on_when_samples_come() -> None:
    """Its window is one bad sample; the next may have come as well, or not yet."""
    said = []
    for come in (0, 1):
        machine = RankProtocol(
            EpochOptions(policy=Even(8), world_size=1, buffer_size=1), rank=0, entries=4
        )
        machine.incoming([machine.outgoing()])
        machine.receive(np.empty((0, 3), np.int64), end=1)
        machine.receive(np.array([[5, 5, 0]] * come), np.arange(1, 1 + come))
        said.append(machine.outgoing())
    assert said[0] == said[1]
