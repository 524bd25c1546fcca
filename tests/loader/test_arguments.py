"""Arguments that are refused, with the value and the remedy, when the loader is made: those that
torch's DataLoader refuses by an error of its type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError
from loader_options import grouped

COUNT = 23
BUDGET = evenstep.TokenBudget(256)
PACKED = evenstep.Even(500, packed=True)


class Numbers(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


class Unsized:
    def __getitem__(self, index: int) -> Any:
        return {"input_ids": torch.ones(3)}


def a_batch_sampler() -> Any:
    return BatchSampler(SequentialSampler(range(COUNT)), 3, False)


AS_TORCH: list[tuple[dict[str, Any], str]] = [
    ({"num_workers": -1}, "num_workers=-1"),
    ({"num_workers": "2"}, "num_workers='2'"),
    ({"timeout": -1}, "timeout=-1"),
    ({"prefetch_factor": 2}, "prefetch_factor=2 needs num_workers"),
    ({"prefetch_factor": -1, "num_workers": 1}, "prefetch_factor=-1"),
    ({"persistent_workers": True}, "persistent_workers=True needs"),
    ({"multiprocessing_context": "fork"}, "multiprocessing_context='fork'"),
    (
        {"multiprocessing_context": "thread", "num_workers": 1},
        "multiprocessing_context='thread' must be one of",
    ),
    ({"multiprocessing_context": object(), "num_workers": 1}, "multiprocessing_context="),
    ({"sampler": range(3), "shuffle": True}, "contradicts"),
    ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ({"batch_size": 2.5}, "batch_size=2.5 must be an integer"),
    ({"batch_size": True}, "batch_size=True"),
    ({"batch_size": None, "drop_last": True}, "no policy"),
    ({"batch_sampler": a_batch_sampler(), "batch_size": 4}, "batch_sampler"),
    ({"batch_sampler": a_batch_sampler(), "batch_size": 1, "shuffle": True}, "batch_sampler"),
    ({"batch_sampler": a_batch_sampler(), "batch_size": 1, "drop_last": True}, "batch_sampler"),
    ({"dataset": Numbers(), "shuffle": True}, "iterable dataset gives its own order"),
    ({"dataset": Numbers(), "sampler": range(3)}, "iterable dataset gives its own order"),
    ({"dataset": Numbers(), "batch_size": 1, "batch_sampler": a_batch_sampler()}, "batch_sampler"),
]


@pytest.mark.parametrize(("arguments", "said"), AS_TORCH)
def test_what_torch_refuses_is_refused_with_an_error_of_its_type(
    arguments: dict[str, Any], said: str
) -> None:
    given = {"dataset": range(COUNT), "batch_size": 2, **arguments}
    with pytest.raises(Exception) as theirs:
        TorchDataLoader(**given)
    with pytest.raises(type(theirs.value), match=said) as ours:
        evenstep.DataLoader(**given)
    assert isinstance(ours.value, ConfigurationError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "no policy"),
        ({"batch_size": None}, "no policy"),
        ({"batch_size": 2, "in_order": False, "num_workers": 2}, "in_order=False"),
        ({"batch_sampler": [[0, 1], [2]]}, "batch_sampler of type list forms batches itself"),
        ({"batch_size": 2, "sampler": [[0, 1], [2]]}, r"here is \[0, 1\]; pass .* batch_sampler="),
        ({"batch_size": 2, "sampler": a_batch_sampler()}, "here is a BatchSampler; pass"),
        ({"policy": "even"}, "policy='even' is no policy"),
        ({"policy": BUDGET, "batch_size": 4}, "batch_size=4 contradicts policy"),
        ({"policy": BUDGET, "prefetch": 0}, "prefetch=0"),
        ({"policy": BUDGET, "buffer_size": 0}, "buffer_size=0"),
        ({"policy": BUDGET, "chunk_size": 0}, "chunk_size=0"),
        ({"policy": BUDGET, "accumulate": 0}, "accumulate=0"),
        ({"policy": BUDGET, "accumulate": 4, "update_tokens": 100}, "accumulate=4 contradicts upd"),
        ({"policy": BUDGET, "update_tokens": 0}, "update_tokens"),
        ({"policy": BUDGET, "seed": -1}, "seed=-1"),
        ({"policy": BUDGET, "seed": 3, "generator": torch.Generator()}, "seed=3 contradicts"),
        ({"policy": BUDGET, "skip_bad_samples": -1}, "skip_bad_samples=-1"),
        ({"policy": BUDGET, "skip_bad_samples": True}, "skip_bad_samples=True"),
        ({"policy": BUDGET, "loss_scaling": "tokens"}, "loss_scaling='tokens' must be one of"),
        ({"policy": BUDGET, "exhausted": "join"}, "exhausted='join' must be one of"),
        ({"policy": BUDGET, "warn_after": -5}, "warn_after=-5"),
        ({"policy": BUDGET, "peer_timeout": 3}, "peer_timeout=3 must be at least 4"),
        ({"policy": BUDGET, "peer_timeout": None}, "peer_timeout=None must be an integer"),
        ({"policy": BUDGET, "group": "world"}, "group='world'"),
        ({"policy": PACKED, "collate_fn": evenstep.PadCollator()}, "PadCollator would pad them"),
        ({"dataset": iter([]), "policy": BUDGET}, "has no __getitem__"),
        ({"dataset": Unsized(), "policy": BUDGET}, "without __len__ needs a sampler"),
    ],
)
def test_what_only_evenstep_refuses_is_a_value_error_that_says_why(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        evenstep.DataLoader(**grouped(**{"dataset": range(COUNT), **arguments}))
    assert isinstance(error.value, ConfigurationError)


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (evenstep.Even, {"max_token": 3}, "Even has no argument max_token=; max_tokens= is meant"),
        (evenstep.DataLoader, {"polcy": BUDGET}, "DataLoader has no argument polcy=; policy= is"),
        (evenstep.DataLoader, {"max_tokens": 3}, r"no argument max_tokens=; there are .* policy, "),
        (evenstep.DataLoader, {"policy": evenstep.Even}, r"Even'> is no policy: pass policy=ev"),
        (
            evenstep.DataLoader,
            {"policy": BUDGET, "memory": {}},
            r"\{\} must be an evenstep.",
        ),
        (
            evenstep.DataLoader,
            {"policy": BUDGET, "dataset": {"code": Documents(10), "chat": Documents(10)}},
            r"a dict of \['code', 'chat'\], .* evenstep.Mixture\(dataset, weights=\{",
        ),
    ],
)
def test_names_and_types_that_are_wrong_are_a_type_error_that_says_what_is_meant(
    make: Callable[..., Any], given: dict[str, Any], said: str
) -> None:
    dataset = {} if make is evenstep.Even else {"dataset": Documents(10)}
    with pytest.raises(TypeError, match=said) as error:
        make(**{**dataset, **given})
    assert isinstance(error.value, ConfigurationError)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_what_an_epoch_depends_on_cannot_be_set_later(name: str) -> None:
    for loader in (
        TorchDataLoader(range(COUNT), batch_size=2),
        evenstep.DataLoader(range(COUNT), batch_size=2),
    ):
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, 3)
