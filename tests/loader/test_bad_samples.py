"""Bad samples of any sort: one error names the sample, under every policy, or they are skipped
where the dataset or their measuring fails; and what the error advises works."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

import evenstep
from evenstep.errors import CollateError, SampleError

COUNT, BAD = 12, 5
NAN = float("nan")


class Thing:
    """An object without a length."""

    def __init__(self, input_ids: Any = None) -> None:
        self.input_ids = input_ids


def text(index: int) -> Any:
    tokens = list(range(1, 4 + index % 5))
    return {"input_ids": tokens, "labels": tokens}


def image(index: int) -> Any:
    return torch.full((3, 4, 4), float(index)), index % 2


def with_labels(labels: Any) -> Any:
    return {"input_ids": [1, 2], "labels": labels}


NO_SAMPLES: dict[str, Any] = {
    "None": None,
    "object": Thing(),
    "NaN": NAN,
    "number": 5,
    "text": "abc",
    "bytes": b"abc",
    "set": {1, 2},
    "no fields": {},
    "empty tuple": (),
    "scalar tensor": torch.tensor(3),
    "matrix": torch.zeros(2, 3),
}
TEXTS: dict[str, Any] = {
    **NO_SAMPLES,
    "no tokens": {"input_ids": None, "labels": [1]},
    "tokens: empty": {"input_ids": [], "labels": []},
    "tokens: nested": {"input_ids": [[1, 2]], "labels": [[1, 2]]},
    "tokens: sparse": {**text(0), "input_ids": torch.tensor([1, 0, 2]).to_sparse()},
    "tokens: object": {**text(0), "input_ids": Thing()},
    "tokens: generator": {**text(0), "input_ids": iter([1, 2])},
    "tokens: some None": {**text(0), "input_ids": [1, 2, None]},
    "tokens: some text": {**text(0), "input_ids": [1, 2, "a"]},
    "tokens: NaN": {**text(0), "input_ids": [NAN, NAN, NAN]},
    "tokens: NaN in a tensor": {**text(0), "input_ids": torch.full((3,), NAN)},
    "tokens: objects in an array": {**text(0), "input_ids": np.array([1, 2, None])},
    "tokens of an object: None": Thing(None),
    "tokens of an object: generator": Thing(iter([1])),
    "labels: object": with_labels(Thing()),
    "labels: mapping": with_labels({"a": 1}),
    "labels: empty": with_labels([]),
    "labels: None first": with_labels([None, 1]),
    "labels: None later": with_labels([1, None]),
    "labels: sparse": with_labels(torch.tensor([1, 2]).to_sparse()),
    "labels: NaN": with_labels([NAN, NAN]),
    "labels: NaN later": with_labels(torch.tensor([0.5, NAN])),
    "labels: one NaN": with_labels(NAN),
    "labels: text": with_labels("a"),
    "labels: texts": with_labels(["a", "b"]),
    "labels: ragged": with_labels([[1], [2, 3]]),
    "another field": {**text(0), "more": 1},
    "a lock": {**text(0), "more": threading.Lock()},
    "tuple": ([1, 2], 3),
}
IMAGES: dict[str, Any] = {
    **{name: bad for name, bad in NO_SAMPLES.items() if name != "matrix"},
    "image: None": (None, 1),
    "image: sparse": (torch.eye(4).to_sparse(), 1),
    "image: another shape": (torch.zeros(1, 4, 4), 1),
    "class: None": (torch.zeros(3, 4, 4), None),
    "class: text": (torch.zeros(3, 4, 4), "cat"),
    "list of numbers": ([1, 2], 3),
}
POLICIES = {
    "fixed": {"batch_size": 4},
    "Even": {"policy": evenstep.Even(32)},
    "packed": {"policy": evenstep.Even(32, packed=True)},
    "micro-batches": {"policy": evenstep.WorkloadPacking(16, micro_batches=2)},
    "pools": {"policy": evenstep.PoolSort(3)},
}


class Samples(Dataset):
    def __init__(self, sample: Any, bad: Any, *places: int) -> None:
        self.sample, self.bad, self.places = sample, bad, places or (BAD,)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.bad if index in self.places else self.sample(index)


class Stream(IterableDataset):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return map(self.samples.__getitem__, range(COUNT))


def check(dataset: Any, bad: int = 1, **options: Any) -> str:
    """A pass that fails by name, and one that skips; returns the error."""
    with pytest.raises(SampleError) as caught:
        list(evenstep.DataLoader(dataset, **options).steps())
    name = f"sample number {BAD}" if isinstance(dataset, IterableDataset) else f"sample {BAD}"
    assert str(caught.value).startswith((f"{name}:", f"{name} ")), caught.value
    if "cannot be collated" in str(caught.value):  # which is known once it is in a group
        return str(caught.value)
    faults = evenstep.Faults(skip_bad_samples=bad)
    loader = evenstep.DataLoader(dataset, faults=faults, **options)
    seen = 0
    for _, step in loader.steps():
        assert step.indices is None or BAD not in step.indices
        seen += step.samples
    assert seen == COUNT - bad
    assert len(loader.skipped) == bad
    return str(caught.value)


@pytest.mark.parametrize(("name", "policy"), zip(TEXTS, itertools.cycle(POLICIES)))
def test_text(name: str, policy: str) -> None:
    check(Samples(text, TEXTS[name]), **POLICIES[policy])


@pytest.mark.parametrize("name", IMAGES)
def test_tuples_of_an_image_and_its_class(name: str) -> None:
    check(Samples(image, IMAGES[name]), batch_size=4)


@pytest.mark.parametrize("bad", [None, with_labels([[1], [2, 3]])])
def test_streams(bad: Any) -> None:
    check(Stream(Samples(text, bad)), policy=evenstep.Even(32))


def dropping(samples: list[Any]) -> Any:
    """The usual idiom."""
    return default_collate([sample for sample in samples if sample is not None])


def dropping_text(samples: list[Any]) -> Any:
    return evenstep.PadCollator()([sample for sample in samples if sample is not None])


def test_none_is_a_bad_sample_where_the_collate_function_would_drop_it_too() -> None:
    error = check(Samples(image, None), batch_size=4, collate_fn=dropping)
    assert "the dataset returned None" in error
    assert "skip_bad_samples" in error
    check(Samples(text, None), policy=evenstep.Even(32), collate_fn=dropping_text)
    # A whole batch of them.
    whole = Samples(image, None, 4, 5, 6, 7)
    faults = evenstep.Faults(skip_bad_samples=4)
    loader = evenstep.DataLoader(whole, batch_size=4, collate_fn=dropping, faults=faults)
    assert [step.indices for _, step in loader.steps()] == [(0, 1, 2, 3), (8, 9, 10, 11)]


def some_images(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample[0] is not None])


def test_a_collate_function_that_drops_samples_is_noticed() -> None:
    dataset = Samples(image, (None, 1))
    check(dataset, batch_size=4, collate_fn=some_images)
    # Of two bad ones none is to blame alone.
    both = Samples(image, (None, 1), BAD, BAD + 1)
    with pytest.raises(
        CollateError, match=r"made 2 rows of 4 samples.*let the dataset return None"
    ):
        list(evenstep.DataLoader(both, batch_size=4, collate_fn=some_images).steps())
    check(Samples(image, None, BAD, BAD + 1), bad=2, batch_size=4, collate_fn=some_images)
    # Where nothing is weighed by samples, it is the loop's affair.
    free = evenstep.DataLoader(both, batch_size=4, collate_fn=some_images, loss_scaling="none")
    assert [len(batch[0]) for batch, _ in free.steps()] == [4, 2, 4]


def test_what_no_sample_is_to_blame_for_is_an_error_of_the_collate_function() -> None:
    def broken(samples: list[Any]) -> Any:
        raise KeyError("anything")

    with pytest.raises(CollateError, match=r"samples \[0, 1, 2, 3\]: collate_fn raised KeyError"):
        passes(Samples(image, image(BAD)), batch_size=4, collate_fn=broken)


# Remedies


def passes(dataset: Any, **options: Any) -> list[Any]:
    return [step for _, step in evenstep.DataLoader(dataset, **options).steps()]


def masking(samples: list[Any]) -> Any:
    """Masks after the labels were counted."""
    batch = evenstep.PadCollator()(samples)
    batch["labels"][:, :2] = -100
    return batch


def test_the_remedies_for_labels_that_were_counted_wrong_work() -> None:
    dataset = Samples(text, text(BAD))
    with pytest.raises(CollateError, match=r"do that in the dataset.*supervised.*'sample'"):
        passes(dataset, **POLICIES["Even"], collate_fn=masking)

    def masked(index: int) -> Any:
        sample = text(index)
        return {**sample, "labels": [-100, -100, *sample["labels"][2:]]}

    assert passes(Samples(masked, masked(BAD)), **POLICIES["Even"], collate_fn=masking)
    counts = evenstep.SampleCounts(supervised=lambda sample: len(sample["input_ids"]) - 2)
    assert passes(dataset, **POLICIES["Even"], collate_fn=masking, length_fn=counts)
    assert passes(dataset, **POLICIES["Even"], collate_fn=masking, loss_scaling="sample")


def noisy(samples: list[Any]) -> Any:
    """Changes tokens, and leaves the labels as they were."""
    batch = evenstep.PadCollator()(samples)
    batch["input_ids"] = batch["input_ids"] + 100 * batch["attention_mask"]
    return batch


@pytest.mark.parametrize("labels", ["causal", "every"])
def test_either_way_to_read_labels_may_be_said(labels: str) -> None:
    dataset = Samples(text, text(BAD))
    with pytest.raises(CollateError, match=r"pass labels='causal' or labels='every'"):
        passes(dataset, **POLICIES["Even"], collate_fn=noisy)
    steps = passes(dataset, **POLICIES["Even"], collate_fn=noisy, labels=labels)
    first = labels == "every"
    assert sum(s.supervised_tokens for s in steps) == sum(
        len(text(i)["input_ids"]) - 1 + first for i in range(COUNT)
    )


class WithoutPackage(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        import a_tokenizer_that_nobody_has  # type: ignore  # noqa: F401

        return text(index)


def test_a_package_that_is_missing_is_no_fault_of_a_sample() -> None:
    loader = evenstep.DataLoader(
        WithoutPackage(),
        policy=evenstep.TokenBudget(64),
        faults=evenstep.Faults(skip_bad_samples=COUNT),
    )
    with pytest.raises(SampleError, match="No module named 'a_tokenizer_that_nobody_has'"):
        list(loader)
    loader.close()
