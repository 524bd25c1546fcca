"""`skip_bad_samples`: bad samples are left out by name, up to a limit; all others come once. And
what goes wrong around samples: in fetching several at once, in the sampler, in a worker."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError, SampleError
from loader_options import grouped

COUNT = 60
LIMIT = 16  # tokens
TORN, LONG, EMPTY = 7, 20, 41
BAD = {TORN: "no such file", LONG: "17 tokens, over max_tokens=16", EMPTY: "length 0"}


def sample_of(number: int) -> dict[str, Any]:
    length = {LONG: LIMIT + 1, EMPTY: 0}.get(number, 1 + number % 9)
    return {"input_ids": torch.full((length,), number), "number": number}


class Faulty(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == TORN:
            raise FileNotFoundError("no such file")
        return sample_of(index)


class FaultyInBatches(Faulty):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Stream(IterableDataset):
    """Has too long and empty samples. Worker w of W has every W-th sample."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return map(sample_of, range(first, COUNT, step))


def loader_over(dataset: Any, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        dataset,
        **grouped(
            **{
                "policy": evenstep.TokenBudget(LIMIT),
                "buffer_size": 12,
                "skip_bad_samples": 3,
                **options,
            }
        ),
    )


def numbers_of(loader: evenstep.DataLoader) -> list[int]:
    """Numbers of the samples of a pass, in order."""
    seen: list[int] = []
    for batch, step in loader.steps():
        seen += batch["number"].tolist()
        if step.indices is not None:
            assert list(step.indices) == batch["number"].tolist()
        assert step.samples == len(batch["number"])
    return seen


GOOD = [number for number in range(COUNT) if number not in BAD]


@pytest.mark.parametrize(
    ("dataset", "workers"), [(Faulty(), 0), (FaultyInBatches(), 2)], ids=["singly", "in batches"]
)
def test_bad_samples_are_named_recorded_and_logged_and_all_others_come_once(
    dataset: Any, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_over(dataset, num_workers=workers, shuffle=True)
    for epoch in range(2):  # the limit is of one epoch
        loader.skipped.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="evenstep"):
            assert sorted(numbers_of(loader)) == GOOD
        assert {bad.index for bad in loader.skipped} == BAD.keys()
        assert len(loader.skipped) == len(BAD)
        logged = [message for message in caplog.messages if "skipped a sample" in message]
        assert len(logged) == len(BAD)
        for bad, message in zip(loader.skipped, logged):
            assert bad.epoch == epoch
            assert f"sample {bad.index}" in bad.reason
            assert BAD[bad.index] in bad.reason
            assert message == f"skipped a sample in epoch {epoch}: {bad.reason}"


def test_one_more_than_allowed_is_an_error_with_its_name_count_and_option() -> None:
    loader = loader_over(Faulty(), skip_bad_samples=2)
    seen: list[int] = []

    def train() -> None:
        for batch, _ in loader.steps():
            seen.extend(batch["number"].tolist())

    said = rf"sample {EMPTY} has length 0.*bad sample number 3 of epoch 0.*skip_bad_samples=2"
    with pytest.raises(SampleError, match=said):
        train()
    assert [bad.index for bad in loader.skipped] == [TORN, LONG]
    assert seen, "what was planned before is delivered"
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(GOOD) & set(range(EMPTY))


def test_bad_samples_far_beyond_the_window_are_not_reported_before_they_are_reached() -> None:
    order = [*range(TORN), *GOOD[TORN:], TORN]
    loader = loader_over(Faulty(), sampler=order, policy=evenstep.FixedBatch(2), buffer_size=2)
    steps = loader.steps()
    for _ in range(5):
        next(steps)
        assert loader.skipped == []
    assert sum(step.samples for _, step in steps) == len(GOOD) - 10
    assert [bad.index for bad in loader.skipped] == [TORN]


def test_what_was_skipped_counts_on_after_a_resume() -> None:
    expected = numbers_of(loader_over(Faulty()))
    for received in (3, 9):
        first = loader_over(Faulty())
        steps = first.steps()
        seen = [n for _ in range(received) for n in next(steps)[0]["number"].tolist()]
        state = json.loads(json.dumps(first.state_dict()))
        first.close()
        for limit in (3, 2):
            second = loader_over(Faulty(), skip_bad_samples=limit)
            second.load_state_dict(state)
            if limit == 2:
                with pytest.raises(SampleError, match=r"number 3 of epoch 0.*skip_bad_samples=2"):
                    numbers_of(second)
                continue
            assert seen + numbers_of(second) == expected
            assert [bad.index for bad in first.skipped + second.skipped] == [TORN, LONG, EMPTY]


def test_of_an_iterable_dataset_the_samples_number_on_its_rank_is_kept() -> None:
    loader = loader_over(Stream(), num_workers=2, chunk_size=4)
    seen = numbers_of(loader)
    assert sorted(seen) == sorted([TORN, *GOOD])
    # The order in which the samples came: the workers take turns of four.
    parts = [list(range(first, COUNT, 2)) for first in (0, 1)]
    turns = range(0, COUNT, 4)
    arrived = [number for first in turns for part in parts for number in part[first : first + 4]]
    assert [bad.index for bad in loader.skipped] == sorted(map(arrived.index, BAD.keys() - {TORN}))
    for bad in loader.skipped:
        assert "of its worker has" in bad.reason
        assert BAD[arrived[bad.index]] in bad.reason


# What goes wrong around samples


class Short(Documents):
    """Gives one sample less than it is asked for."""

    def __getitems__(self, indices):
        return [self[index] for index in indices[1:]]


class Breaking:
    def __iter__(self):
        yield from range(20)
        raise OSError("index server gone")


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Short(COUNT), {}, "one of sample 0, sample 1, "),
        (Subset(Documents(4), [0, 1, 9]), {}, "sample 2: .* raised IndexError"),
        (Documents(COUNT), {"sampler": [1, 2, COUNT + 5]}, f"sample {COUNT + 5}"),
        (Documents(COUNT), {"sampler": Breaking()}, "sampler raised OSError: index server gone"),
    ],
)
def test_what_is_wrong_is_said_by_name(dataset, options, said):
    loader = evenstep.DataLoader(dataset, policy=evenstep.TokenBudget(512), **options)
    with pytest.raises(SampleError, match=f"(?s){said}"):
        list(loader)


def broken_init(worker):
    raise ImportError("no codec")


def test_a_worker_that_cannot_start_is_said_to():
    loader = evenstep.DataLoader(
        Documents(COUNT), batch_size=4, num_workers=1, worker_init_fn=broken_init
    )
    with pytest.raises(LoaderDiedError, match="ImportError: no codec"):
        list(loader)
