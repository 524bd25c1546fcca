from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, SubsetRandomSampler
from torch.utils.data import DataLoader as TorchDataLoader

import evenstep
from documents import Documents
from evenstep.batch import PadCollator

BUDGET = evenstep.TokenBudget(512)


def indices(loader: evenstep.DataLoader) -> list[int]:
    return [index for _, step in loader.steps() for index in step.indices]


def marked(samples):
    return {**PadCollator()(samples), "marked": True}


def test_everything_the_torch_loader_has_is_taken_over():
    init = print
    loader = TorchDataLoader(
        Documents(20),
        batch_size=4,
        num_workers=2,
        collate_fn=marked,
        timeout=30,
        worker_init_fn=init,
        prefetch_factor=3,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    wrapped = evenstep.wrap(loader, policy=BUDGET)
    assert wrapped.dataset is loader.dataset
    assert wrapped.collate_fn is marked
    assert wrapped.num_workers == 2
    assert wrapped.persistent_workers
    seen = []
    for batch, step in wrapped.steps():
        assert batch["marked"]
        seen += step.indices
    assert sorted(seen) == list(range(20))


def test_a_stock_order_is_drawn_by_evenstep_so_that_it_can_be_sharded():
    wrapped = evenstep.wrap(TorchDataLoader(Documents(20), shuffle=True), policy=BUDGET, seed=5)
    assert wrapped.sampler is None
    assert wrapped.shuffle
    assert sorted(indices(wrapped)) == list(range(20))
    assert not evenstep.wrap(TorchDataLoader(Documents(20)), policy=BUDGET).shuffle


def test_a_sampler_of_the_user_is_kept():
    sampler = SubsetRandomSampler([3, 5, 7])
    wrapped = evenstep.wrap(TorchDataLoader(Documents(20), sampler=sampler), policy=BUDGET)
    assert wrapped.sampler is sampler
    assert sorted(indices(wrapped)) == [3, 5, 7]


class Pairs:
    def __iter__(self):
        return iter([[9, 1], [4, 4]])

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    ("batch_sampler", "expected"),
    [(Pairs(), [1, 4, 4, 9]), (BatchSampler([8, 6, 2], 2, False), [2, 6, 8])],
)
def test_the_indices_of_a_batch_sampler_are_kept(batch_sampler, expected):
    loader = TorchDataLoader(Documents(20), batch_sampler=batch_sampler)
    assert sorted(indices(evenstep.wrap(loader, policy=BUDGET))) == expected


def test_the_default_collate_function_gives_way_to_padding():
    wrapped = evenstep.wrap(TorchDataLoader(Documents(20), batch_size=4), policy=BUDGET)
    assert isinstance(wrapped.collate_fn, PadCollator)


def test_options_win():
    loader = TorchDataLoader(Documents(20), sampler=[1, 2], num_workers=2, timeout=9)
    wrapped = evenstep.wrap(
        loader, policy=BUDGET, num_workers=0, sampler=[4], memory=evenstep.Memory(buffer_size=7)
    )
    assert wrapped.num_workers == 0
    assert wrapped.memory.buffer_size == 7
    assert indices(wrapped) == [4]
    assert sorted(indices(evenstep.wrap(loader, policy=BUDGET, shuffle=True))) == list(range(20))


@pytest.mark.parametrize("other", [Documents(3), [torch.ones(1)], None])
def test_anything_but_a_torch_loader_is_refused(other):
    with pytest.raises(evenstep.ConfigurationError, match=r"wrap takes a torch\.utils\.data"):
        evenstep.wrap(other, policy=BUDGET)
