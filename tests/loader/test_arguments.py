from __future__ import annotations

import pytest
import torch
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import CollateError, ConfigurationError
from loader_options import grouped

BUDGET = evenstep.TokenBudget(256)
PACKED = evenstep.Even(500, packed=True)


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Unsized:
    def __getitem__(self, index):
        return {"input_ids": torch.ones(3)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "no policy"),
        ({"policy": "even"}, "policy='even' is no policy"),
        ({"policy": BUDGET, "batch_size": 4}, "batch_size=4 contradicts policy"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be an integer"),
        ({"policy": BUDGET, "num_workers": -1}, "num_workers=-1"),
        ({"policy": BUDGET, "prefetch": 0}, "prefetch=0"),
        ({"policy": BUDGET, "buffer_size": 0}, "buffer_size=0"),
        ({"policy": BUDGET, "chunk_size": 0}, "chunk_size=0"),
        ({"policy": BUDGET, "accumulate": 0}, "accumulate=0"),
        ({"policy": BUDGET, "seed": -1}, "seed=-1"),
        ({"policy": BUDGET, "seed": 3, "generator": torch.Generator()}, "seed=3 contradicts"),
        ({"policy": BUDGET, "skip_bad_samples": -1}, "skip_bad_samples=-1"),
        ({"policy": BUDGET, "skip_bad_samples": True}, "skip_bad_samples=True"),
        ({"policy": BUDGET, "loss_scaling": "tokens"}, "loss_scaling='tokens' must be one of"),
        ({"policy": BUDGET, "exhausted": "join"}, "exhausted='join' must be one of"),
        ({"policy": BUDGET, "timeout": -1, "num_workers": 1}, "timeout=-1"),
        ({"policy": BUDGET, "warn_after": -5}, "warn_after=-5"),
        ({"policy": BUDGET, "peer_timeout": 3}, "peer_timeout=3 must be at least 4"),
        ({"policy": BUDGET, "peer_timeout": None}, "peer_timeout=None must be an integer"),
        ({"policy": BUDGET, "prefetch_factor": 2}, "prefetch_factor=2 needs num_workers"),
        ({"policy": BUDGET, "persistent_workers": True}, "persistent_workers=True needs"),
        (
            {"policy": BUDGET, "num_workers": 1, "multiprocessing_context": "thread"},
            "multiprocessing_context='thread' must be one of",
        ),
        ({"policy": BUDGET, "shuffle": True, "sampler": range(3)}, "contradicts"),
        ({"policy": PACKED, "collate_fn": evenstep.PadCollator()}, "PadCollator would pad them"),
        (
            {"dataset": Endless(), "policy": BUDGET, "shuffle": True},
            "iterable dataset gives its own order",
        ),
        (
            {"dataset": Endless(), "policy": BUDGET, "sampler": range(3)},
            "iterable dataset gives its own order",
        ),
        ({"dataset": iter([]), "policy": BUDGET}, "has no __getitem__"),
        ({"dataset": Unsized(), "policy": BUDGET}, "without __len__ needs a sampler"),
    ],
)
def test_every_wrong_argument_is_refused_at_construction(arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        evenstep.DataLoader(**grouped(**{"dataset": Documents(10), **arguments}))


def test_a_packed_policy_packs_and_refuses_what_pads():
    loader = evenstep.DataLoader(Documents(40), policy=PACKED)
    for batch, step in loader.steps():
        assert batch["input_ids"].numel() == step.tokens == step.padded_tokens <= 500
    padding = evenstep.DataLoader(
        Documents(40), policy=PACKED, collate_fn=lambda samples: evenstep.PadCollator()(samples)
    )
    with pytest.raises(
        CollateError, match=r"step \d+ of epoch 0 on rank 0: .* collate function pads"
    ):
        list(padding)


def test_unknown_arguments_and_options_that_are_not_in_their_class_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_tokens'"):
        evenstep.DataLoader(Documents(10), policy=BUDGET, max_tokens=3)
    with pytest.raises(TypeError, match=r"memory=\{\} must be an evenstep.Memory"):
        evenstep.DataLoader(Documents(10), policy=BUDGET, memory={})
