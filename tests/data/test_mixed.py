"""Mixtures of datasets: which samples an epoch draws, in which order, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

import evenstep
from evenstep.data.mixed_order import MixtureOrder
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.mixture import FeedbackSchedule, LengthCurriculum

SIZES = {"code": 300, "chat": 120, "web": 40}
WEIGHTS = {"code": 0.6, "chat": 0.3, "web": 0.1}
LENGTHS = {
    name: np.random.default_rng(number).integers(1, 40 << number, size)
    for number, (name, size) in enumerate(SIZES.items())
}


def rows(name: str, size: int) -> list[dict[str, Any]]:
    return [{"input_ids": [1] * int(LENGTHS[name][i]), "of": name, "row": i} for i in range(size)]


ROWS = {name: rows(name, size) for name, size in SIZES.items()}


class Streamed(IterableDataset):  # type: ignore[type-arg]
    """Rows in order."""

    def __init__(self, name: str, size: int | None = None) -> None:
        self.rows = ROWS[name][:size]
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class Stateful(Streamed):
    """It keeps its own position, and is not read again from its beginning."""

    position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.rows):
            self.position += 1
            yield self.rows[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def order(*, seed: int = 0, shuffle: bool = True, **options: Any) -> MixtureOrder:
    given = {"datasets": ROWS, "weights": WEIGHTS, **options}
    return MixtureOrder(evenstep.Mixture(**given), seed=seed, shuffle=shuffle)


def drawn(made: MixtureOrder, epoch: int = 0) -> list[tuple[str, int]]:
    made.set_epoch(epoch)
    samples = [made._mixture[index] for index in made.indices.tolist()]
    return [(sample["of"], sample["row"]) for sample in samples]


def shares(samples: list[tuple[str, int]]) -> Counter[str]:
    return Counter(name for name, _ in samples)


# Shares and orders


@pytest.mark.parametrize(("epochs", "samples"), [(2, 100), (5, 7)])
def test_each_source_has_its_share_within_a_sample_however_many_epochs(
    epochs: int, samples: int
) -> None:
    made = order(samples_per_epoch=samples, samples_per_step=32)
    counts = shares([one for epoch in range(epochs) for one in drawn(made, epoch)])
    assert counts.total() == epochs * samples
    for name, weight in WEIGHTS.items():
        assert abs(counts[name] - weight * epochs * samples) <= 1.0 + 1e-9


def test_an_endless_mixture_reads_each_source_whole_before_it_begins_again() -> None:
    made = order(samples_per_epoch=50, samples_per_step=16)
    of = {name: [] for name in SIZES}
    for epoch in range(12):
        for name, row in drawn(made, epoch):
            of[name].append(row)
    for name, size in SIZES.items():
        passes = [of[name][at : at + size] for at in range(0, len(of[name]), size)]
        assert all(len(set(one)) == len(one) for one in passes)
    first, second = of["web"][:40], of["web"][40:80]
    assert sorted(first) == list(range(40))
    assert first[: len(second)] != second  # shuffled anew


def test_an_epoch_does_not_depend_on_which_were_asked_for_before() -> None:
    one, other = order(samples_per_epoch=50), order(samples_per_epoch=50)
    found = {epoch: drawn(one, epoch) for epoch in range(4)}
    assert {epoch: drawn(other, epoch) for epoch in (3, 0, 2, 1)} == found
    assert len({tuple(each) for each in found.values()}) == 4
    assert drawn(order(seed=1, samples_per_epoch=50)) != found[0]


def test_stop_rules_end_epochs_and_each_begins_all_sources_again() -> None:
    stored = drawn(order(shuffle=False, stop="all_exhausted"))
    for name, size in SIZES.items():
        assert [row for of, row in stored if of == name] == list(range(size))
    everything = {(name, row) for name, size in SIZES.items() for row in range(size)}
    for epoch in range(2):
        assert sorted(drawn(order(stop="all_exhausted"), epoch)) == sorted(everything)
        first = drawn(order(stop="first_exhausted", samples_per_step=10), epoch)
        assert len(first) == len(set(first)) < len(everything)
        assert any(shares(first)[name] == size for name, size in SIZES.items())
        repeated = drawn(order(stop="all_repeated", samples_per_step=10), epoch)
        assert set(repeated) == everything
        assert repeated.count(repeated[-1]) == 1  # it ends when the last was read once
    assert drawn(order(stop="all_exhausted"), 0) != drawn(order(stop="all_exhausted"), 1)
    assert len(drawn(order())) == sum(SIZES.values())


def test_a_source_is_read_as_often_as_is_said() -> None:
    counts = Counter(drawn(order(stop="all_exhausted", passes={"web": 3})))
    assert {row: counts["web", row] for row in range(40)} == dict.fromkeys(range(40), 3)
    assert {counts["code", row] for row in range(300)} == {1}


def test_reports_count_from_the_next_epoch_on_and_are_in_the_state() -> None:
    def by_loss(last: Any, signals: Any) -> dict[str, float]:
        return dict(signals["loss_by_source"])

    def make() -> MixtureOrder:
        weights = FeedbackSchedule(initial={"code": 1}, function=by_loss)
        return order(weights=weights, samples_per_epoch=40, samples_per_step=20)

    made = make()
    assert shares(drawn(made, 0)) == {"code": 40}
    made._mixture.report(loss_by_source={"chat": 1.0, "web": 3.0})
    assert shares(drawn(made, 0)) == {"code": 40}
    saved = json.loads(json.dumps(made.state_dict(0)))
    second = drawn(made, 1)
    assert shares(second) == {"chat": 10, "web": 30}
    resumed = make()
    resumed.load_state_dict(0, saved, begun=True)
    assert shares(drawn(resumed, 0)) == {"code": 40}
    assert drawn(resumed, 1) == second
    with pytest.raises(ConfigurationError, match="finite"):
        made._mixture.report(loss=float("nan"))


def test_a_state_begins_its_epoch_and_refuses_other_draws_in_the_middle_of_it() -> None:
    made = order(samples_per_epoch=50)
    third, fourth = drawn(made, 2), drawn(made, 3)
    saved = json.loads(json.dumps(made.state_dict(2)))
    resumed = order(samples_per_epoch=50)
    resumed.load_state_dict(2, saved, begun=True)
    assert drawn(resumed, 2) == third
    assert drawn(resumed, 3) == fourth
    other = order(samples_per_epoch=50, weights={"code": 1, "web": 1})
    with pytest.raises(MismatchError, match="in the middle"):
        other.load_state_dict(2, saved, begun=True)
    other.load_state_dict(2, saved, begun=False)
    assert shares(drawn(other, 2)).keys() == {"code", "web"}


# As a dataset


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"datasets": {}}, "mapping from names"),
        ({"weights": {"codes": 1}}, "'codes', which is not a source"),
        ({"weights": {"code": -1}}, "from 0"),
        ({"by": "bytes"}, "by='bytes'"),
        ({"by": "tokens"}, "pass lengths="),
        ({"curriculum": LengthCurriculum({0: 5})}, "pass lengths="),
        ({"by": "tokens", "lengths": {"code": [1]}}, "lengths of"),
        ({"stop": "never"}, "stop='never'"),
        ({"passes": {"web": 2}}, "choose another rule"),
        ({"passes": {"wet": 2}, "stop": "all_exhausted"}, "'wet', which is not a source"),
        ({"samples_per_epoch": 0}, "samples_per_epoch=0"),
        ({"samples_per_step": 0}, "samples_per_step=0"),
        ({"datasets": {"code": ROWS["code"], "chat": [], "web": ROWS["web"]}}, "size of source"),
        (
            {"datasets": {**ROWS, "web": Streamed("web")}},
            "'code', 'chat' of datasets are",
        ),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        order(**given)
    assert said in str(caught.value)


# Of iterable datasets


def stream(kind: type[Streamed] = Streamed, **options: Any) -> Any:
    given = {"stop": "all_exhausted", "samples_per_step": 16, "weights": WEIGHTS, **options}
    return evenstep.Mixture({name: kind(name) for name in SIZES}, **given)


def identities(samples: Iterator[Any]) -> list[tuple[str, int]]:
    return [(sample["of"], sample["row"]) for sample in samples]


def test_a_stream_has_its_shares_and_each_source_in_its_own_order() -> None:
    samples = identities(stream())
    for name, size in SIZES.items():
        assert [row for of, row in samples if of == name] == list(range(size))
    early = shares(samples[:160])
    assert all(abs(early[name] - 160 * weight) <= 1.0 for name, weight in WEIGHTS.items())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Streamed, {"stop": "first_exhausted"}),
        (Stateful, {"stop": "all_exhausted", "passes": {"web": 2}}),
        (Streamed, {"stop": "repeat", "samples_per_epoch": 500}),
        (Stateful, {"stop": "repeat", "samples_per_epoch": 200, "by": "tokens"}),
    ],
)
def test_a_stream_resumes_after_any_sample(kind: type[Streamed], options: dict[str, Any]) -> None:
    reading = iter(stream(kind, **options))
    whole, states = [], [reading.state_dict()]
    for sample in reading:
        whole.append((sample["of"], sample["row"]))
        states.append(json.loads(json.dumps(reading.state_dict())))
    assert len(whole) > 100
    for count in range(0, len(states), 61):
        resumed = iter(stream(kind, **options))
        resumed.load_state_dict(states[count])
        again = iter(stream(kind, **options))
        again.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert identities(resumed) == identities(again) == whole[count:]


def test_ranks_of_a_stream_draw_differently_and_share_an_epoch() -> None:
    found = []
    for rank in range(3):
        mixed = stream(stop="repeat", samples_per_epoch=100)
        mixed.begin(epoch=1, seed=0, rank=rank, ranks=3)
        found.append(identities(mixed))
        assert mixed.datasets["web"].epochs[0] == 1
    assert sorted(map(len, found)) == [33, 33, 34]
    assert len({tuple(name for name, _ in each) for each in found}) == 3


def test_a_pass_after_one_that_was_left_begins_at_the_beginning() -> None:
    mixed = stream(Stateful)
    whole = identities(mixed)
    list(itertools.islice(iter(mixed), 50))
    assert identities(mixed) == whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stop": "repeat"}, "samples_per_epoch="),
        ({"stop": "all_repeated"}, "needs the sizes"),
        ({"lengths": LENGTHS}, "map-style"),
        ({"curriculum": LengthCurriculum({0: 5})}, "map-style"),
    ],
)
def test_what_streams_cannot_do_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        stream(**options)
