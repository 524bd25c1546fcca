"""A loader that loads a state makes the batches that would have come; anything else is refused."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from streams import StatefulStream, Stream, WithIterator
from torch.utils.data import (
    RandomSampler,
)

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.loader.resume.state import rank_key
from evenstep.testing import assert_exact_resume
from few_steps import FewSteps
from loader_options import grouped

POLICIES = {
    "drop last": evenstep.FixedBatch(6, drop_last=True),
    "few steps a round": FewSteps(300, steps=2),
    "even": evenstep.Even(512),
    "even, packed, updates": evenstep.Even(512, packed=True, sync="update"),
    "workload": evenstep.WorkloadPacking(250, micro_batches=2),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_every_policy_resumes_exactly_after_every_step(policy) -> None:
    def make() -> evenstep.DataLoader:
        return evenstep.DataLoader(
            Documents(24, prompts=True),
            policy=policy,
            accumulate=3 if policy.sync == "update" else 1,
            shuffle=True,
            seed=7,
            memory=evenstep.Memory(buffer_size=12),
        )

    assert assert_exact_resume(make, epochs=1) > 4


class Augmented(Documents):
    """Draws a crop, from every source of random numbers that there is."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        cut = random.randint(0, 1) + int(np.random.randint(2)) + int(torch.randint(2, ()))
        length = max(len(sample["input_ids"]) - cut, 1)
        return {**sample, **{k: sample[k][:length] for k in ("input_ids", "labels")}}


class Masking:
    """Replaces tokens at random, as masked language modelling does."""

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        batch = evenstep.PadCollator()(samples)
        batch["input_ids"][torch.rand(batch["input_ids"].shape) < 0.2] = 0
        return batch


def test_with_workers_random_samples_and_random_batches_come_again() -> None:
    def make() -> evenstep.DataLoader:
        return evenstep.DataLoader(
            Augmented(60),
            policy=evenstep.TokenBudget(512),
            shuffle=True,
            collate_fn=Masking(),
            labels="every",
            num_workers=1,
            memory=evenstep.Memory(buffer_size=16),
        )

    assert assert_exact_resume(make, every=4) > 1


class Counted:
    """A sampler of this rank's own, which is a function of the epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randint(0, self.count, (self.count,), generator=generator).tolist())


class Sized(Counted):
    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(("make_sampler", "shard"), [(Counted, False), (Sized, True)])
def test_a_sampler_that_is_a_function_of_the_epoch_resumes_exactly(make_sampler, shard) -> None:
    def make() -> evenstep.DataLoader:
        return evenstep.DataLoader(
            Documents(24),
            policy=evenstep.TokenBudget(400),
            sampler=make_sampler(24),
            shard_sampler=shard,
            memory=evenstep.Memory(buffer_size=16),
        )

    assert assert_exact_resume(make, epochs=2) > 5


@pytest.mark.parametrize(
    ("sampler", "shared", "said"),
    [
        # One of torch's global state.
        (RandomSampler(range(100)), False, "another order than when the checkpoint was made"),
        (RandomSampler(range(100)), True, "another order than when the checkpoint was made"),
        (range(3), False, "yields fewer than"),
    ],
)
def test_a_sampler_that_yields_something_else_after_a_resume_is_found_out(
    sampler, shared, said
) -> None:
    first = RandomSampler(range(100)) if len(sampler) == 100 else range(100)
    state, _ = state_after(5, shuffle=False, sampler=first, shard_sampler=shared)
    resumed = make_loader(shuffle=False, sampler=sampler, shard_sampler=shared)
    resumed.load_state_dict(evenstep.merge_states([state]) if shared else state)
    with pytest.raises(MismatchError, match=said):
        next(resumed.steps())


# Iterable datasets


@pytest.mark.parametrize(
    ("kind", "num_workers"), [(StatefulStream, 2), (WithIterator, 0), (Stream, 0)]
)
def test_iterable_datasets_resume_exactly(kind, num_workers) -> None:
    def make() -> evenstep.DataLoader:
        return evenstep.DataLoader(
            kind(Documents(20)),
            policy=evenstep.TokenBudget(400),
            num_workers=num_workers,
            memory=evenstep.Memory(buffer_size=12, chunk_size=2),
            faults=evenstep.Faults(replay=kind is Stream),
        )

    assert assert_exact_resume(make, epochs=2, every=1 if not num_workers else 5) >= 2


def test_a_stateless_dataset_is_refused_where_replay_is_not_allowed() -> None:
    loader = evenstep.DataLoader(
        Stream(Documents(50)),
        policy=evenstep.TokenBudget(400),
        memory=evenstep.Memory(buffer_size=12),
    )
    refusals = []
    for _ in loader.steps():
        try:
            loader.state_dict()
        except ConfigurationError as error:
            refusals.append("Stream has no state_dict" in str(error))
    # What is planned first can be had again from the beginning; nothing after it.
    assert refusals
    assert all(refusals)
    assert loader.state_dict()["epoch"]["number"] == 1


class Unserialisable(StatefulStream):
    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.Generator()}


def test_a_dataset_state_that_no_file_can_hold_is_refused() -> None:
    loader = evenstep.DataLoader(Unserialisable(Documents(50)), policy=evenstep.TokenBudget(400))
    with pytest.raises(SampleError, match=r"cannot be saved \(it holds a .*Generator"):
        next(loader.steps())


# Changes between saving and loading


def make_loader(**options: Any) -> evenstep.DataLoader:
    given = {
        "dataset": Documents(120),
        "policy": evenstep.TokenBudget(300),
        "shuffle": True,
        "buffer_size": 24,
    }
    return evenstep.DataLoader(**grouped(**{**given, **options}))


def identities(loader: evenstep.DataLoader) -> list[list[int]]:
    return [batch["identity"].tolist() for batch, _ in loader.steps()]


def state_after(steps: int, **options: Any) -> tuple[dict[str, Any], list[list[int]]]:
    loader = make_loader(**options)
    iterator = loader.steps()
    seen = [next(iterator)[0]["identity"].tolist() for _ in range(steps)]
    state = loader.state_dict()
    loader.close()
    return json.loads(json.dumps(state)), seen


def test_the_number_of_workers_and_what_is_prefetched_may_change() -> None:
    state, seen = state_after(7)
    loader = make_loader(num_workers=2, prefetch=1, chunk_size=5)
    loader.load_state_dict(state)
    assert seen + identities(loader) == identities(make_loader())


@pytest.mark.parametrize(("buffer_size", "kind"), [(5, "map"), (40, "iterable")])
def test_with_another_buffer_size_every_remaining_sample_comes_once(buffer_size, kind) -> None:
    options = {} if kind == "map" else {"dataset": WithIterator(Documents(120)), "shuffle": False}

    def make(size: int) -> evenstep.DataLoader:
        return make_loader(buffer_size=size, **options)

    seen: list[int] = []
    steps_seen, state = 0, make(24).state_dict()
    for size in (24, buffer_size, 24, 7):  # from one to the next in the middle of the epoch
        loader = make(size)
        loader.load_state_dict(state)
        steps = loader.steps()
        for _ in range(3):
            batch, step = next(steps)
            assert step.step == steps_seen
            steps_seen += 1
            seen += batch["identity"].tolist()
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    loader = make(24)
    loader.load_state_dict(state)
    seen += [identity for batch in identities(loader) for identity in batch]
    assert Counter(seen) == Counter(range(120))
    assert loader.epoch == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": evenstep.TokenBudget(301)}, "policy"),
        ({"policy": evenstep.FixedBatch(2)}, "policy"),
        ({"seed": 1}, "seed"),
        ({"shuffle": False}, "order"),
        ({"drop_last": True}, "order"),
        ({"shuffle": False, "sampler": range(120)}, "order"),
    ],
)
def test_another_policy_seed_or_order_is_refused(options, named) -> None:
    state, _ = state_after(3)
    with pytest.raises(MismatchError, match=f"saved with another {named}"):
        make_loader(**options).load_state_dict(state)


class Named(Documents):
    def __init__(self, count: int, fingerprint: str) -> None:
        super().__init__(count)
        self.fingerprint = fingerprint


@pytest.mark.parametrize("other", [Documents(119), Named(120, "v1"), Named(120, "v2")])
def test_another_dataset_is_refused(other) -> None:
    loader = evenstep.DataLoader(Named(120, "v1"), batch_size=4)
    next(loader.steps())
    resumed = evenstep.DataLoader(other, batch_size=4)
    if getattr(other, "fingerprint", "") == "v1":
        resumed.load_state_dict(loader.state_dict())
    else:
        with pytest.raises(MismatchError, match="saved with another dataset"):
            resumed.load_state_dict(loader.state_dict())


class Grown(Documents):
    """Its samples are longer than they were."""

    __qualname__ = "Documents"  # by which a state knows the dataset

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {
            **sample,
            "input_ids": sample["input_ids"].repeat(2),
            "labels": sample["labels"].repeat(2),
        }


def test_samples_that_are_not_what_they_were_are_found_out() -> None:
    state, _ = state_after(3, policy=evenstep.FixedBatch(4))
    loader = make_loader(policy=evenstep.FixedBatch(4), dataset=Grown(120))
    loader.load_state_dict(state)
    said = r"sample \d+ has .* now and had .* when the checkpoint .*Faults\(repeatable=False\)"
    with pytest.raises(SampleError, match=said):
        list(loader.steps())


@pytest.mark.parametrize("iterable", [False, True])
def test_samples_of_another_length_come_once_where_that_is_expected(
    iterable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"dataset": Documents(120), "policy": evenstep.Even(600)}
    if iterable:
        given |= {"dataset": WithIterator(Documents(120)), "shuffle": False, "chunk_size": 5}
    state, seen = state_after(6, **given)
    part = state[rank_key(0)]
    held = len(part["numbers"]) - len(part["trained"])
    dataset: Any = WithIterator(Grown(120)) if iterable else Grown(120)
    faults = evenstep.Faults(repeatable=False)
    loader = make_loader(**{**given, "dataset": dataset}, faults=faults)
    loader.load_state_dict(state)
    seen += identities(loader)
    assert sorted(itertools.chain(*seen)) == list(range(120))
    (told,) = [r.message for r in caplog.records if "another length" in r.message]
    assert told.startswith(f"{held} of the {held} samples that this rank held when the state")
    with pytest.raises(ConfigurationError, match=r"too_long='split'.*repeatable=False"):
        make_loader(
            dataset=WithIterator(Documents(4)), shuffle=False, too_long="split", faults=faults
        )


# What a state is


def test_set_epoch_does_not_throw_a_loaded_state_away() -> None:
    state, seen = state_after(4)
    loader = make_loader()
    loader.load_state_dict(state)
    with pytest.raises(MismatchError, match=r"step 4 of epoch 0, which would be lost"):
        loader.set_epoch(1)
    loader.set_epoch(0)
    assert seen + identities(loader) == identities(make_loader())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "dataset": WithIterator(Documents(120)),
            "shuffle": False,
            "num_workers": 2,
            "persistent_workers": True,
        },
    ],
    ids=["map", "persistent"],
)
def test_going_back_in_one_process_makes_the_same_steps_again(options) -> None:
    loader = make_loader(**options)
    whole = identities(loader)
    loader.set_epoch(0)
    steps = loader.steps()
    first = [next(steps)[0]["identity"].tolist() for _ in range(3)]
    state = loader.state_dict()
    for _ in range(4):
        next(steps)
    loader.load_state_dict(state)
    assert first + identities(loader) == whole
    loader.set_epoch(0)
    assert identities(loader) == whole  # workers begin at the beginning again
    loader.close()


def test_a_pass_that_was_left_does_not_shorten_the_next() -> None:
    loader = make_loader(
        dataset=StatefulStream(Documents(40)), shuffle=False, buffer_size=8, exhausted="stop"
    )

    def whole() -> bool:
        return sorted(i for batch in identities(loader) for i in batch) == list(range(40))

    assert whole()
    next(loader.steps())
    assert whole()
    state = loader.state_dict()
    next(loader.steps())
    loader.load_state_dict(state)
    assert whole()
