"""Collate functions that pad to a multiple, whatever else is in the group."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import evenstep
from evenstep.errors import ConfigurationError, SampleError

COUNT, MULTIPLE = 120, 16
LENGTHS = [1 + (7 * i) % 40 for i in range(COUNT)]
SAMPLES = [{"input_ids": list(range(1, n + 1)), "labels": list(range(1, n + 1))} for n in LENGTHS]

POLICIES = [
    evenstep.Even(max_tokens=250),
    evenstep.TokenBudget(max_tokens=250),
    evenstep.FixedBatch(6),
]


def check(loader: evenstep.DataLoader, most: int | None) -> None:
    """Every sample once, in groups whose padding is known and keeps the limit."""
    seen: list[int] = []
    for batch, step in loader.steps():
        seen += step.indices
        tokens = batch["input_ids"]
        assert tokens.shape[-1] % MULTIPLE == 0
        assert step.padded_tokens == tokens.numel()
        assert step.tokens == sum(LENGTHS[i] for i in step.indices)
        assert most is None or tokens.numel() <= most
    assert sorted(set(seen)) == list(range(COUNT))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_groups_are_planned_by_what_lies_in_memory(policy):
    collate = evenstep.PadCollator(pad_to_multiple_of=MULTIPLE)
    loader = evenstep.DataLoader(SAMPLES, policy=policy, collate_fn=collate)
    check(loader, policy.limit and policy.limit.max_tokens)


def test_packed_rows_are_planned_with_the_padding_of_their_documents():
    policy = evenstep.Even(max_tokens=256, packed=True)
    collate = evenstep.PackCollator(pad_documents_to_multiple_of=8, pad_to_multiple_of=MULTIPLE)
    check(evenstep.DataLoader(SAMPLES, policy=policy, collate_fn=collate), 256)


class Collator:
    """As those of transformers."""

    def __init__(self, multiple: int | None) -> None:
        self.pad_to_multiple_of = multiple

    def __call__(self, samples: list[Any]) -> Any:
        pad = evenstep.PadCollator(pad_to_multiple_of=self.pad_to_multiple_of)
        return pad([{name: s[name] for name in ("input_ids", "labels")} for s in samples])


class Wrapped:
    """As Trainer wraps one for data sets of torch."""

    def __init__(self, data_collator: Any) -> None:
        self.data_collator = data_collator

    def __call__(self, samples: list[Any]) -> Any:
        return self.data_collator(samples)


def function(samples: list[Any], pad_to_multiple_of: int) -> Any:
    return Collator(pad_to_multiple_of)(samples)


OWN = {
    "object": Collator(MULTIPLE),
    "wrapped": Wrapped(Collator(MULTIPLE)),
    "method": Collator(MULTIPLE).__call__,
    "partial": partial(function, pad_to_multiple_of=MULTIPLE),
}


@pytest.mark.parametrize("name", list(OWN))
def test_a_collate_function_of_the_users_counts_likewise(name):
    policy = evenstep.Even(max_tokens=250)
    check(evenstep.DataLoader(SAMPLES, policy=policy, collate_fn=OWN[name]), 250)


class Preparing(Collator):
    def __call__(self, rows: list[Any]) -> Any:
        samples = [{"input_ids": row["text"], "labels": row["text"]} for row in rows]
        return super().__call__(samples)


@pytest.mark.parametrize("given", [None, False, True])
def test_groups_of_prepared_samples_are_padded_as_the_collate_function_does(given):
    collate: Any = Preparing(MULTIPLE)
    if given is not None:
        collate = evenstep.PreparingCollator(collate_fn=collate, again=given)
    rows = [{"text": sample["input_ids"]} for sample in SAMPLES]
    policy = evenstep.Even(max_tokens=250)
    check(evenstep.DataLoader(rows, policy=policy, collate_fn=collate), 250)


def test_a_sample_that_is_too_long_with_its_padding_is_refused():
    samples = [{"input_ids": [1] * 65}]
    collate = evenstep.PadCollator(pad_to_multiple_of=64)
    with pytest.raises(SampleError, match=r"sample 0, padded to a multiple of 64, has 128 tokens"):
        list(evenstep.DataLoader(samples, policy=evenstep.Even(max_tokens=100), collate_fn=collate))
    ((batch, step),) = evenstep.DataLoader(
        samples, policy=evenstep.Even(max_tokens=128), collate_fn=collate
    ).steps()
    assert (batch["input_ids"].numel(), step.tokens, step.padded_tokens) == (128, 65, 128)


def test_rows_longer_than_the_limit_by_their_padding_are_refused():
    collate = evenstep.PackCollator(pad_to_multiple_of=64)

    def loader(most: int) -> evenstep.DataLoader:
        policy = evenstep.Even(max_tokens=most, packed=True)
        return evenstep.DataLoader(SAMPLES, policy=policy, collate_fn=collate)

    with pytest.raises(ConfigurationError, match="use max_tokens=256, or another multiple"):
        loader(250)
    assert max(batch["input_ids"].numel() for batch, _ in loader(256).steps()) == 256
