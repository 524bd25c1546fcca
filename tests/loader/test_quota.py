"""`DataLoader.epochs`: passes are chained until so many samples have been received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError
from evenstep.loader.quota import until
from evenstep.plan.rng import generator
from worlds import KEEPING, SHARDS, World, visible


@dataclass
class SimulatedStep:
    """One step of all ranks."""

    epoch: int
    seen: list[tuple]
    samples: int
    ends_update: bool = True


@dataclass
class SimulatedLoader:
    """All ranks of a job, as far as `until` knows a loader. Each epoch has an order of its own."""

    policy: Any
    shards: list[list[int]]
    exhausted: str
    samples: int = 0
    epoch: int = 0
    checkpoints: Any = None
    """Of the ranks after the last step, where the next pass goes on."""
    saves: bool = False

    def world(self) -> World:
        orders = [
            generator(self.epoch, rank).permutation(len(shard)).tolist()
            for rank, shard in enumerate(self.shards)
        ]
        shards = [[shard[i] for i in order] for shard, order in zip(self.shards, orders)]
        return World(self.policy, shards, 12, exhausted=self.exhausted, lends=True)

    def steps(self) -> Iterator[tuple[None, SimulatedStep]]:
        world = self.world()
        if self.checkpoints is not None:
            world, self.checkpoints = world.resumed(self.checkpoints, lends=True), None
        skip, epoch = world.received, self.epoch
        self.epoch += 1
        for number, steps in enumerate(world.steps()):
            if number < skip:
                continue
            samples = int(steps[0].totals.samples.sum())
            self.samples += samples
            if self.saves:
                self.checkpoints = world.checkpoints(steps)
            yield None, SimulatedStep(epoch, [visible(step) for step in steps], samples)
        self.checkpoints = None


@pytest.mark.filterwarnings("ignore")
@given(
    policy=KEEPING,
    shards=SHARDS.filter(all),
    exhausted=st.sampled_from(["pad", "stop"]),
    passes=st.floats(0.1, 3),
    data=st.data(),
)
def test_a_quota_is_met_and_exceeded_by_less_than_a_step(
    policy, shards, exhausted, passes, data
) -> None:
    quota = max(1, int(passes * sum(map(len, shards))))
    loader = SimulatedLoader(policy, shards, exhausted)
    steps = [step for _, step in until(loader, quota)]
    assert loader.samples == sum(step.samples for step in steps)
    assert quota <= loader.samples < quota + steps[-1].samples
    assert [step.epoch for step in steps] == sorted(step.epoch for step in steps)
    # Within an epoch no sample comes twice, and under "pad" all come but in the last.
    for epoch in range(loader.epoch):
        for rank, shard in enumerate(shards):
            seen = [step.seen[rank] for step in steps if step.epoch == epoch]
            numbers = [number for one in seen if not one[-1] for number in one[1]]
            assert len(set(numbers)) == len(numbers)
            if exhausted == "pad" and epoch < loader.epoch - 1:
                assert sorted(numbers) == list(range(len(shard)))

    # A job that was stopped after any step goes on with the same steps.
    cut = data.draw(st.integers(1, len(steps)))
    stopped = SimulatedLoader(policy, shards, exhausted, saves=True)
    before = []
    for _, step in until(stopped, quota):
        before.append(step)
        if len(before) == cut:
            break
    resumed = SimulatedLoader(
        policy,
        shards,
        exhausted,
        samples=stopped.samples,
        epoch=stopped.epoch - 1,
        checkpoints=stopped.checkpoints,
    )
    assert before + [step for _, step in until(resumed, quota)] == steps


def make_loader(**options: Any) -> evenstep.DataLoader:
    given = {"policy": evenstep.TokenBudget(300), "shuffle": True, "seed": 3, "buffer_size": 16}
    return evenstep.DataLoader(Documents(40, prompts=True), **{**given, **options})


def identities(steps: Iterator[tuple[Any, Any]]) -> list[tuple[int, list[int]]]:
    return [(step.epoch, batch["identity"].tolist()) for batch, step in steps]


def test_a_state_of_any_step_goes_on_to_the_same_end() -> None:
    states = []
    whole = []
    loader = make_loader()
    for batch, step in loader.epochs(samples=100):
        whole.append((step.epoch, batch["identity"].tolist()))
        states.append(loader.state_dict())
    assert {epoch for epoch, _ in whole} == {0, 1, 2}
    assert 100 <= loader.samples < 100 + len(whole[-1][1])
    for done, state in enumerate(states, 1):
        resumed = make_loader()
        resumed.load_state_dict(state)
        assert resumed.samples == sum(len(batch) for _, batch in whole[:done])
        assert identities(resumed.epochs(samples=100)) == whole[done:]
    # What a larger quota adds begins where this one ended, in the middle of an epoch.
    longer = make_loader()
    longer.load_state_dict(states[-1])
    rest = identities(longer.epochs(samples=120))
    assert Counter(i for e, batch in whole + rest if e == 2 for i in batch) == Counter(range(40))


def test_states_of_an_epochs_end_keep_the_count() -> None:
    loader = make_loader()
    for _ in loader.steps():
        pass
    assert loader.samples == 40
    again = make_loader()
    again.load_state_dict(loader.state_dict())
    assert (again.epoch, again.samples) == (1, 40)
    again.set_epoch(7)
    assert {step.epoch for _, step in again.epochs(samples=60)} == {7}
    merged = make_loader()
    merged.load_state_dict(evenstep.merge_states([again.state_dict()]))
    assert merged.samples == again.samples


def test_an_update_is_never_cut() -> None:
    loader = make_loader(accumulate=3)
    steps = [step for _, step in loader.epochs(samples=30)]
    assert steps[-1].ends_update
    update = [step.samples for step in steps if step.update == steps[-1].update]
    assert len(update) > 1
    assert 30 <= loader.samples < 30 + sum(update)


def test_a_quota_that_is_met_begins_no_pass() -> None:
    loader = make_loader()
    first = identities(loader.epochs(samples=10))
    assert first
    assert identities(loader.epochs(samples=10)) == []
    assert loader.epoch == 1


class Nothing(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_a_quota_that_cannot_be_met_is_an_error() -> None:
    loader = evenstep.DataLoader(Nothing(), policy=evenstep.TokenBudget(300), buffer_size=16)
    with pytest.raises(ConfigurationError, match=r"epochs 0 and 1 had no .* 0 of 10 samples"):
        list(loader.epochs(samples=10))
    for wrong in (0, -1, 1.5):
        with pytest.raises(ConfigurationError, match="samples"):
            loader.epochs(samples=wrong)  # type: ignore[arg-type]
