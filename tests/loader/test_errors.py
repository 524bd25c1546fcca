"""One clear exception for each thing that can be wrong with a sample or a function of the user."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Subset

import evenstep
from documents import Documents
from evenstep.errors import CollateError, LoaderDiedError, SampleError
from loader_options import grouped

COUNT = 60
CULPRIT = 37


class Raising(Documents):
    def __getitem__(self, index):
        if index == CULPRIT:
            raise KeyError("no such file")
        return super().__getitem__(index)


class Batched(Raising):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Short(Documents):
    """Gives one sample less than it is asked for."""

    def __getitems__(self, indices):
        return [self[index] for index in indices[1:]]


class Empty(Documents):
    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return (
            {k: v[:0] for k, v in sample.items() if k != "identity"} if index == CULPRIT else sample
        )


class Long(Documents):
    def __getitem__(self, index):
        size = 1000 if index == CULPRIT else 5
        return {"input_ids": torch.ones(size, dtype=torch.int64)}


class Renamed(Documents):
    def __getitem__(self, index):
        return {"tokens": torch.ones(3)}


def failing_length(sample):
    if sample["identity"] == CULPRIT:
        raise ZeroDivisionError("by zero")
    return len(sample["input_ids"])


def negative_length(sample):
    return -4 if sample["identity"] == CULPRIT else len(sample["input_ids"])


def failing_collate(samples):
    raise RuntimeError("cannot stack")


def truncating_collate(samples):
    batch = evenstep.PadCollator()(samples)
    batch["labels"][:, 3:] = -100
    return batch


def run(dataset, workers, **options):
    options = {"policy": evenstep.TokenBudget(512), "buffer_size": 16, **options}
    loader = evenstep.DataLoader(dataset, num_workers=workers, **grouped(**options))
    for _ in loader:
        pass


@pytest.mark.parametrize(
    ("dataset", "options", "kind", "said"),
    [
        (Raising(COUNT), {}, SampleError, f"^sample {CULPRIT}: .* raised KeyError: .*no such file"),
        (Batched(COUNT), {}, SampleError, f"^sample {CULPRIT}: the dataset raised KeyError"),
        (Short(COUNT), {}, SampleError, "one of sample 0, sample 1, "),
        (Subset(Documents(4), [0, 1, 9]), {}, SampleError, "sample 2: .* raised IndexError"),
        (Empty(COUNT), {}, SampleError, f"sample {CULPRIT}.*"),
        (Long(COUNT), {}, SampleError, f"sample {CULPRIT} has 1,000 tokens, over max_tokens=512"),
        (Renamed(COUNT), {}, SampleError, r"sample 0.*no 'input_ids' among its fields.*length_fn="),
        (
            Documents(COUNT),
            {"length_fn": failing_length},
            SampleError,
            f"sample {CULPRIT}.*ZeroDivisionError",
        ),
        (Documents(COUNT), {"length_fn": negative_length}, SampleError, f"sample {CULPRIT}.*-4"),
        (
            Documents(COUNT),
            {"collate_fn": failing_collate},
            CollateError,
            "step 0 of epoch 0 on rank 0, samples .*: collate_fn raised RuntimeError: cannot stack",
        ),
        (Documents(COUNT), {"collate_fn": truncating_collate}, CollateError, "SampleCounts"),
        (Documents(COUNT), {"sampler": [1, 2, COUNT + 5]}, SampleError, f"sample {COUNT + 5}"),
    ],
)
def test_what_is_wrong_with_a_sample_is_said_by_name(dataset, options, kind, said):
    for workers in (0, 1) if kind is CollateError or type(dataset) is Batched else (0,):
        with pytest.raises(kind, match=f"(?s){said}"):
            run(dataset, workers, **options)


def test_labels_that_the_collate_function_changes_pass_where_samples_are_what_counts():
    run(Documents(COUNT), 0, collate_fn=truncating_collate, loss_scaling="sample")


def failing_sampler():
    yield from range(20)
    raise OSError("index server gone")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_raises_is_said_to(workers):
    class Sampler:
        def __iter__(self):
            return failing_sampler()

    with pytest.raises(SampleError, match="the sampler raised OSError: index server gone"):
        run(Documents(COUNT), workers, sampler=Sampler())


def broken_init(worker):
    raise ImportError("no codec")


def test_a_worker_that_cannot_start_is_said_to():
    with pytest.raises(LoaderDiedError, match="ImportError: no codec"):
        run(Documents(COUNT), 1, worker_init_fn=broken_init)
