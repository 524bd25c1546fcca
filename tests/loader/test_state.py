"""States of loaders: what they hold survives JSON, ranks' parts fit together, damage is refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from documents import Documents
from evenstep import Even, FixedBatch, TokenBudget
from evenstep.errors import MismatchError
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.state import LoaderState, merge_states, rank_key, to_dict
from evenstep.plan import Policy
from evenstep.plan.epoch import Stream
from evenstep.protocol.window_buffer import RoundStart
from loader_options import grouped

COUNT = 60
BUFFER = 12


def through_json(state: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


def job_of(world_size: int, **changes: Any) -> dict[str, Any]:
    job = {"policy": "Fixed", "seed": 3, "buffer_size": 8, "accumulate": 2, "iterable": None}
    return {"world_size": world_size, **job, **changes}


class Epoch:
    """An epoch of some samples, trained on by ranks that are stopped at any point and resumed on
    another number of ranks."""

    def __init__(self, total: int, draw: random.Random) -> None:
        self.draw = draw
        self.trained: list[int] = []
        self.positions = [EpochProgress(epoch=4, stream=Stream(total))]
        self.repeats: set[int] = set()

    def states(self, world_size: int) -> list[dict[str, Any]]:
        return [
            through_json(to_dict(job_of(world_size), position, rank))
            for rank, position in enumerate(self.positions)
        ]

    def go_on(self, world_size: int, window: int) -> None:
        """Deals out what is left, and trains on some of it: each rank is in one of its windows, and
        has had any samples of it."""
        (position,) = self.positions
        stream = position.stream
        assert stream is not None
        # As the loader deals: an epoch that has not begun is made even by repeating samples.
        shares = [stream.share(rank, world_size, even=stream.whole) for rank in range(world_size)]
        draw, self.positions = self.draw, []
        received = draw.randint(1, 5)
        for rank, share in enumerate(shares):
            taken = draw.randint(0, len(share))
            numbers = sorted(draw.sample(range(taken), min(taken, draw.randint(0, window))))
            trained = draw.sample(numbers, draw.randint(0, len(numbers)))
            done = sorted({*range(taken)} - {*numbers} | {*trained})
            entries = np.array(done, np.int64)
            first_time = entries * world_size + rank < len(stream)
            self.trained += share[entries[first_time]].tolist()
            start = RoundStart(
                round=position.start.round,
                step=position.start.step,
                taken=taken,
                numbers=np.array(numbers, np.int64),
                columns=np.ones((7, len(numbers)), np.int64),
                ages=np.zeros(len(numbers), np.int64),
                quota=window,
                labels=position.start.labels,
            )
            self.positions.append(
                EpochProgress(
                    epoch=4,
                    stream=stream,
                    start=start,
                    received=received,
                    trained=np.array(trained, np.int64),
                )
            )

    def merge(self, states: list[dict[str, Any]]) -> None:
        self.draw.shuffle(states)
        merged = through_json(merge_states(states))
        others = [LoaderState.read(merged).progress(rank, 5) for rank in range(5)]
        assert len({repr(position) for position in others}) == 1
        self.positions = others[:1]

    @property
    def left(self) -> list[int]:
        stream = self.positions[0].stream
        assert stream is not None
        return stream.positions(np.arange(len(stream))).tolist()


WORLDS = st.lists(st.integers(1, 8), min_size=1, max_size=4)
RANDOMS = st.randoms(use_true_random=False)


@given(st.integers(0, 80), WORLDS, st.integers(0, 9), RANDOMS)
def test_any_chain_of_worlds_leaves_what_was_not_trained_on(
    total: int, worlds: list[int], window: int, draw: random.Random
) -> None:
    epoch = Epoch(total, draw)
    for world_size in worlds:
        epoch.go_on(world_size, window)
        states = epoch.states(world_size)
        for rank, (state, position) in enumerate(zip(states, epoch.positions)):
            read = LoaderState.read(state)
            again = read.progress(rank, world_size)
            assert to_dict(read.job, again, rank) == state
            assert again.remaining.numbers.tolist() == position.remaining.numbers.tolist()
            assert (again.step, again.epoch) == (position.step, 4)
        epoch.merge(states)
        assert sorted(epoch.trained + epoch.left) == list(range(total))
        assert epoch.left == sorted(epoch.left)


@given(st.integers(2, 6), RANDOMS)
def test_other_ranks_and_missing_ones_are_named(world_size: int, draw: random.Random) -> None:
    epoch = Epoch(50, draw)
    epoch.go_on(world_size, 6)
    states = epoch.states(world_size)
    with pytest.raises(MismatchError, match=r"ranks \[1\], and this is rank 0"):
        LoaderState.read(states[1]).progress(0, world_size)
    gone = sorted(draw.sample(range(world_size), draw.randint(1, world_size - 1)))
    rest = [state for rank, state in enumerate(states) if rank not in gone]
    said = rf"saved by {world_size} ranks, and the parts of ranks {', '.join(map(str, gone))} are"
    with pytest.raises(MismatchError, match=said):
        merge_states(rest)
    together = {key: value for state in rest for key, value in state.items()}
    with pytest.raises(MismatchError, match=said):
        LoaderState.read(together).progress(0, world_size + 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"job": job_of(2, seed=4)}, "states 0 and 1 differ in job seed: 3 and 4"),
        ({"job": job_of(3)}, "differ in job world_size: 2 and 3"),
        ({"job": job_of(2, policy=None)}, "differ in job policy: 'Fixed' and None"),
        ({"job": job_of(2, policy="x" * 5000)}, "differ in job policy: 'Fixed' and 'xxx"),
        ({"epoch.number": 5}, "differ in epoch number: 4 and 5"),
        ({"epoch.step": 9}, "differ in epoch step: 0 and 9"),
        ({"epoch.received": 99}, "differ in epoch received: .* and 99; .* of one checkpoint"),
        ({"epoch.stream": None}, "differ in epoch stream"),
    ],
)
def test_what_states_differ_in_is_named(change: dict[str, Any], said: str) -> None:
    epoch = Epoch(50, random.Random(0))
    epoch.go_on(2, 6)
    states = epoch.states(2)
    for path, value in change.items():
        *outer, last = path.split(".")
        place = states[1]
        for name in outer:
            place = place[name]
        place[last] = value
    with pytest.raises(MismatchError, match=said) as caught:
        merge_states(states)
    assert len(str(caught.value)) < 500


def test_shares_that_were_not_dealt_out_are_not_dealt_out_anew() -> None:
    epoch = Epoch(50, random.Random(1))
    epoch.go_on(2, 6)
    epoch.positions = [replace(position, stream=None) for position in epoch.positions]
    with pytest.raises(MismatchError, match=r"order of its own.*shard_sampler=True"):
        merge_states(epoch.states(2))


# Through a loader


def make_loader(**options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(COUNT),
        **grouped(
            **{
                "policy": TokenBudget(300, max_wait=3),
                "shuffle": True,
                "buffer_size": BUFFER,
                **options,
            }
        ),
    )


def states_of(loader: evenstep.DataLoader, epochs: int = 1) -> Iterator[dict[str, Any]]:
    """The state before the first step, after each, and after the end."""
    yield loader.state_dict()
    for _ in range(epochs):
        for _ in loader.steps():
            yield loader.state_dict()
        yield loader.state_dict()
    loader.close()


def shape(value: Any) -> Any:
    """Keys of a state at all depths."""
    if isinstance(value, Mapping):
        return {key: shape(item) for key, item in value.items()}
    return None


def numbers_in(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(numbers_in, value.values()))
    return sum(map(numbers_in, value)) if isinstance(value, (list, tuple)) else 1


@pytest.mark.parametrize("buffer_size", [5, 30])
@pytest.mark.parametrize(
    "policy", [FixedBatch(4), TokenBudget(300, max_wait=3), Even(300)], ids=lambda one: one.name
)
def test_states_of_a_run_are_read_back_have_the_same_keys_and_are_bounded_by_the_window(
    policy: Policy, buffer_size: int
) -> None:
    states = list(states_of(make_loader(policy=policy, buffer_size=buffer_size), 2))
    assert len(states) > 10
    fixed = numbers_in(states[0])
    for state in states:
        assert shape(state) == shape(states[0])
        assert [key for key in state if key.startswith("dp_rank_")] == [rank_key(0)]
        read = LoaderState.read(through_json(state))
        assert to_dict(read.job, read.progress(0, 1), 0) == state
        part = state[rank_key(0)]
        # Six numbers and whether it was trained on for each sample of the window; one for each
        # that is queued; and checksums.
        assert len(part["numbers"]) <= buffer_size
        assert len(part["entries"]) <= 2 * buffer_size
        assert numbers_in(state) <= fixed + 8 * buffer_size + 32


def in_the_middle() -> dict[str, Any]:
    loader = make_loader()
    steps = loader.steps()
    for _ in range(4):
        next(steps)
    state = loader.state_dict()
    loader.close()
    return through_json(state)


MIDDLE = in_the_middle()


def paths(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Of every key at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield (*path, key)
            yield from paths(item, (*path, key))


def load(state: Any) -> None:
    loader = make_loader()
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except MismatchError:
        assert loader.state_dict() == before, "a refused state has changed the loader"
        raise


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """`MIDDLE` with another value at `path`."""
    state = copy.deepcopy(MIDDLE)
    place = state
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return state


def without(path: tuple[str, ...]) -> dict[str, Any]:
    state = changed(path, None)
    place = state
    for name in path[:-1]:
        place = place[name]
    del place[path[-1]]
    return state


def accepted(states: Mapping[str, Any]) -> dict[str, str]:
    """Which of the states a loader does not refuse with a `MismatchError`, and what comes."""
    found = {}
    for name, state in states.items():
        try:
            load(state)
        except MismatchError:
            continue
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = "loaded"
    return found


# That no fingerprint was given, and that the dataset is not iterable, goes without saying.
OPTIONAL = {("job", "iterable"), ("job", "dataset", "fingerprint")}


def test_a_state_that_lacks_anything_is_refused() -> None:
    states = {".".join(path): without(path) for path in paths(MIDDLE) if path not in OPTIONAL}
    assert len(states) > 30
    assert accepted(states) == {}


# What None stands for something in; a state for any number of ranks has a world size of None.
NULLABLE = OPTIONAL | {
    ("job", "world_size"),
    ("job", "order", "sampler"),
    ("epoch", "stream"),
    ("epoch", "window_size"),
    ("epoch", "window_limit"),
    ("epoch", "labels"),
    ("epoch", "next_entry"),
    ("dp_rank_0", "workers"),
}


@pytest.mark.parametrize("wrong", ["text", None, [[1]], {}], ids=repr)
def test_a_value_of_the_wrong_kind_is_refused(wrong: Any) -> None:
    found = [path for path in paths(MIDDLE) if wrong is not None or path not in NULLABLE]
    states = {".".join(path): changed(path, wrong) for path in found}
    assert len(states) > 30
    assert accepted(states) == {}


FOREIGN = {
    "None": None,
    "empty": {},
    "a trainer's": {"epoch": 3, "global_step": 100},
    "text version": {"version": "3"},
    "hollow": {"version": 5, "of": "DataLoader", "job": {}, "epoch": {}},
    "a service's": {**MIDDLE, "of": "service"},
    "odd rank": {**MIDDLE, "dp_rank_x": MIDDLE["dp_rank_0"]},
    "no rank": {key: value for key, value in MIDDLE.items() if key != "dp_rank_0"},
}


@pytest.mark.parametrize("state", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_state_is_refused(state: Any) -> None:
    with pytest.raises(MismatchError):
        load(state)
    with pytest.raises(MismatchError):
        merge_states([state])


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        # The pass would wait forever for the samples that it takes for trained,
        ("epoch", {"received": 0}, "damaged: ValueError: trained is"),
        ("dp_rank_0", {"quota": None}, "damaged: ValueError: quota is None"),
        # or for samples that its window has no room for.
        ("dp_rank_0", {"quota": 61}, "window gathers 61 samples, and this loader's hold 12"),
    ],
)
def test_a_state_for_which_the_pass_would_wait_for_ever_is_refused(
    part: str, change: dict[str, int | None], said: str
) -> None:
    assert MIDDLE[part].get("trained", True)
    with pytest.raises(MismatchError, match=said):
        load({**MIDDLE, part: {**MIDDLE[part], **change}})
