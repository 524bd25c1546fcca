"""`DataLoader.epochs`: passes are chained until so many samples have been received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError
from loader_options import grouped


def make_loader(**options: Any) -> evenstep.DataLoader:
    given = {"policy": evenstep.TokenBudget(300), "shuffle": True, "seed": 3, "buffer_size": 16}
    return evenstep.DataLoader(Documents(40, prompts=True), **grouped(**{**given, **options}))


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
    for done, state in [*enumerate(states, 1)][::2]:
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
    loader = evenstep.DataLoader(
        Nothing(), policy=evenstep.TokenBudget(300), memory=evenstep.Memory(buffer_size=16)
    )
    with pytest.raises(ConfigurationError, match=r"epochs 0 and 1 had no .* 0 of 10 samples"):
        list(loader.epochs(samples=10))
    for wrong in (0, -1, 1.5):
        with pytest.raises(ConfigurationError, match="samples"):
            loader.epochs(samples=wrong)  # type: ignore[arg-type]
