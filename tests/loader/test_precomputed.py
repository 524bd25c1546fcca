"""A loader under a policy that plans the epoch offline."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from torch.utils.data import SequentialSampler

import evenstep
from documents import Documents
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.testing import assert_exact_resume
from loader_options import grouped

DOCUMENTS = Documents(60, prompts=True)
LENGTHS = DOCUMENTS.lengths
POLICIES = {
    "sorted": evenstep.Sorted(4, lengths=LENGTHS),
    "length grouped": evenstep.LengthGrouped(3, lengths=LENGTHS),
    "max tokens": evenstep.MaxTokens(400, lengths=LENGTHS),
    "bucketed": evenstep.BucketedMaxTokens(300, lengths=LENGTHS, bucket_size=20),
    "packed": evenstep.SequencePacking(400, lengths=LENGTHS),
}


def make(policy: evenstep.Policy, dataset: Any = DOCUMENTS, **options: Any) -> evenstep.DataLoader:
    if policy.packed:
        options = {"collate_fn": evenstep.PackCollator(), **options}
    return evenstep.DataLoader(dataset, policy=policy, **grouped(**{"buffer_size": 16, **options}))


def indices(loader: evenstep.DataLoader) -> list[tuple[Any, ...]]:
    return [step.indices for _, step in loader.steps()]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_batches_are_those_that_the_policy_deals(policy) -> None:
    loader = make(policy, seed=3)
    for epoch in range(2):
        (dealt,) = policy.deal(LENGTHS, 1, seed=3, epoch=epoch)
        assert len(loader) == loader.estimated_steps == len(dealt)
        made = indices(loader)
        assert made == [tuple(dealt.group(g).tolist()) for g in range(len(dealt))]
        assert Counter(i for batch in made for i in batch) == Counter(range(60))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_they_resume_exactly_after_every_step(policy) -> None:
    assert assert_exact_resume(lambda: make(policy), epochs=2) > 10


def test_with_workers_they_resume_exactly() -> None:
    policy = POLICIES["bucketed"]
    assert assert_exact_resume(lambda: make(policy, num_workers=2), every=9) > 1


@pytest.mark.parametrize("after", [4, 60])
def test_the_batches_stay_the_same_when_the_buffer_size_is_changed(after) -> None:
    policy = POLICIES["bucketed"]
    whole = indices(make(policy, buffer_size=30))
    first = make(policy, buffer_size=30)
    steps = first.steps()
    for _ in range(7):
        next(steps)
    second = make(policy, buffer_size=after)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert indices(second) == whole[7:]


class Growing(Documents):
    """One of its documents has grown since they were counted."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return sample if index != 17 else super().__getitem__(int(LENGTHS.argmax()))


def test_a_sample_whose_length_has_changed_is_an_error_that_names_it() -> None:
    with pytest.raises(SampleError, match=rf"sample 17 has {LENGTHS.max()} tokens, and \d+ in"):
        indices(make(POLICIES["max tokens"], Growing(60, prompts=True)))


class Broken(Documents):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 7 == 0:
            raise OSError("unreadable")
        return super().__getitem__(index)


def test_bad_samples_are_missing_from_their_batches_alone() -> None:
    policy = POLICIES["sorted"]
    loader = make(policy, Broken(60, prompts=True), skip_bad_samples=9)
    (dealt,) = policy.deal(LENGTHS, 1, seed=0, epoch=0)
    expected = [[i for i in dealt.group(g).tolist() if i % 7] for g in range(len(dealt))]
    assert [list(batch) for batch in indices(loader)] == [batch for batch in expected if batch]
    assert len(loader.skipped) == 9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset": Documents(61)}, "lengths of 60 samples, and the dataset has 61"),
        ({"shuffle": True}, "shuffle=True contradicts MaxTokens"),
        ({"sampler": SequentialSampler(DOCUMENTS)}, "contradicts MaxTokens"),
        ({"drop_last": True}, "drop_last=True contradicts MaxTokens"),
    ],
)
def test_what_contradicts_a_planned_epoch_is_refused_at_once(options, says) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make(POLICIES["max tokens"], **options)


def test_an_iterable_dataset_is_refused_at_once() -> None:
    stream = evenstep.PoolSortDataset(DOCUMENTS, pool_size=4)
    with pytest.raises(ConfigurationError, match="by dataset index, and an iterable dataset has"):
        make(POLICIES["max tokens"], stream)


def test_a_dataset_that_has_changed_size_since_is_refused_when_the_epoch_begins() -> None:
    documents = Documents(60)
    loader = make(POLICIES["max tokens"], documents)
    documents.lengths = documents.lengths[:-1]
    with pytest.raises(MismatchError, match=r"has 59 samples now, .* lengths of 60"):
        loader.steps()


def test_the_rest_of_an_epoch_planned_for_some_ranks_is_refused_by_other_numbers() -> None:
    loader = make(POLICIES["max tokens"])
    next(loader.steps())
    with pytest.raises(MismatchError, match="had planned the epoch for that many"):
        evenstep.merge_states([loader.state_dict()])
