"""Jobs whose models read labels in many ways: on two ranks the gradient of each update is that of
its samples one by one; and a job whose samples show too late how it does is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_all
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset

import evenstep
from evenstep.errors import PeerError, SampleError

COUNT, VOCABULARY, WIDTH = 60, 40, 6
Sample = dict[str, Any]


def tokens_of(index: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(2, VOCABULARY, (2 + index * 7 % 23,), generator=generator)


def copies(index: int) -> Sample:
    return {"input_ids": tokens_of(index), "labels": tokens_of(index)}


def corrected(index: int) -> Sample:
    """Mostly copies, of an encoder-decoder's source; in some one word is another."""
    sample = copies(index)
    if index % 4 == 1:
        sample["labels"][0] = 2 + (sample["labels"][0] - 1) % (VOCABULARY - 2)
    return sample


def numbers(index: int) -> Sample:
    return {"input_ids": tokens_of(index), "labels": tokens_of(index) / 7.0}


# Losses: means over what their models predict


def of_next(model: Any, batch: Any) -> torch.Tensor:
    logits = model.head(model.embed(batch["input_ids"]))
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def of_each(model: Any, batch: Any) -> torch.Tensor:
    logits = model.head(model.embed(batch["input_ids"]))
    return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def of_numbers(model: Any, batch: Any) -> torch.Tensor:
    kept = batch["labels"] != -100
    found = model.head(model.embed(batch["input_ids"]))[..., 0]
    return mse_loss(found[kept], batch["labels"][kept])


def shifting(samples: list[Sample]) -> Any:
    """Makes the labels, and shifts them."""
    batch = evenstep.PadCollator()(samples)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {"input_ids": batch["input_ids"][:, :-1], "labels": labels[:, 1:]}


class Model(nn.Module):
    def __init__(self, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.loss = loss
        self.double()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.loss(self, batch)


@dataclass
class Kind:
    sample: Any
    loss: Any
    weight: Callable[[Any], int]
    """What a sample counts in the mean."""
    options: dict[str, Any]
    reading: str | None


def real(sample: Sample) -> int:
    return int((sample["labels"] != -100).sum())


def after_first(sample: Sample) -> int:
    return len(sample["input_ids"]) - 1


EVEN = {"policy": evenstep.Even(64)}
# Those that `jobs` does not draw.
KINDS = {
    "shifted by the collate function": Kind(
        copies, of_each, after_first, {**EVEN, "collate_fn": shifting}, "causal"
    ),
    "encoder-decoder that says so": Kind(
        copies, of_each, real, {**EVEN, "labels": "every"}, "every"
    ),
    "numbers": Kind(numbers, of_numbers, real, EVEN, None),
}


class Samples(Dataset):
    def __init__(self, sample: Callable[[int], Any], count: int = COUNT) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def gradient(model: nn.Module) -> torch.Tensor:
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten().clone() for g in found])
    model.zero_grad()
    return flat


def of_samples(kind: Kind, indices: list[int]) -> torch.Tensor:
    """The gradient of samples one by one, without padding and without a loader."""
    loss = of_next if kind.loss is of_each and kind.options.get("collate_fn") is shifting else None
    model = Model(loss or kind.loss)
    samples = [kind.sample(index) for index in indices]
    total = sum(map(kind.weight, samples))
    for sample in samples:
        if weight := kind.weight(sample):
            (model(evenstep.PadCollator()([sample])) * weight / total).backward()
    return gradient(model)


def train(rank: Rank, name: str) -> None:
    kind, world = KINDS[name], rank.world_size
    model = Model(kind.loss)
    loader = evenstep.DataLoader(Samples(kind.sample), accumulate=2, **kind.options)
    own: list[int] = []
    trained: list[int] = []
    for batch, step in loader.steps():
        if step.loss_scale:
            (model(batch) * step.loss_scale).backward()
        own += () if step.filler else step.indices
        if step.ends_update:
            found = gradient(model)
            dist.all_reduce(found)
            everyone: list[Any] = [None] * world
            dist.all_gather_object(everyone, own)
            indices = [index for each in everyone for index in each]
            expected = of_samples(kind, indices)
            assert (found / world - expected).norm() < 1e-6 * expected.norm(), (name, step.step)
            trained += indices
            own = []
    assert sorted({*trained}) == list(range(COUNT))
    assert loader.labels == kind.reading or kind.reading is None


def test_gradients_on_two_ranks_are_those_of_samples_one_by_one(tmp_path: Any) -> None:
    jobs = [partial(train, name=name) for name in KINDS]
    run_all(*jobs, world_size=2, folder=tmp_path, within=100)


# A proof that comes too late


LATE = 45


def seldom_corrected(index: int) -> Sample:
    sample = copies(index)
    if index == LATE:
        sample["labels"][-1] = 1
    return sample


def late_loader(**options: Any) -> evenstep.DataLoader:
    memory = evenstep.Memory(buffer_size=4)
    policy = evenstep.FixedBatch(2)
    collate = evenstep.PadCollator()
    return evenstep.DataLoader(
        Samples(seldom_corrected), policy=policy, collate_fn=collate, memory=memory, **options
    )


def train_until_the_proof(rank: Rank) -> Any:
    loader = late_loader()
    states, seen = [], []
    with pytest.raises((SampleError, PeerError)) as caught:  # noqa: PT012
        for _, step in loader.steps():
            seen.extend(step.indices)
            states.append(loader.state_dict())
    assert loader.labels == "causal"
    loader.close()
    # Either remedy resumes from a state saved before.
    for labels in ("every", "causal"):
        resumed = late_loader(labels=labels)
        resumed.load_state_dict(states[-3])
        rest = []
        for _, step in resumed.steps():
            rest += step.indices
            expected = [len(tokens_of(i)) - (labels == "causal") for i in step.indices]
            assert step.supervised_tokens == sum(expected)
        assert sorted({*seen[:-4], *rest}) == list(range(rank.rank, COUNT, 2))
        resumed.close()
    return type(caught.value).__name__, str(caught.value)


def test_what_samples_have_shown_holds_for_later_passes_and_in_states() -> None:
    loader = evenstep.DataLoader(Samples(corrected), **EVEN)
    assert loader.labels is None
    list(loader.steps())
    state = loader.state_dict()
    assert state["epoch"]["labels"] == loader.labels == "every"
    other = evenstep.DataLoader(Samples(copies), **EVEN)
    other.load_state_dict(state)
    assert all(
        step.supervised_tokens == sum(len(tokens_of(i)) for i in step.indices)
        for _, step in other.steps()
    )


def say_different_things(rank: Rank) -> str:
    labels = ("causal", "every")[rank.rank]
    with pytest.raises(evenstep.errors.MismatchError) as caught:
        list(evenstep.DataLoader(Samples(copies), **EVEN, labels=labels).steps())
    return str(caught.value)


def test_a_proof_that_comes_too_late_and_ranks_that_differ_are_one_error_on_all(
    tmp_path: Any,
) -> None:
    outcomes, differing = run_all(
        train_until_the_proof, say_different_things, world_size=2, folder=tmp_path, within=100
    )
    kinds = [kind for kind, _ in outcomes]
    assert sorted(kinds) == ["PeerError", "SampleError"]
    for _, message in outcomes:
        assert f"sample {LATE} has labels that are no copy of its tokens" in message
        assert "labels='every'" in message
        assert "labels='causal'" in message
    for said in differing:
        assert "ranks differ in use of labels: rank 0 has 'causal', rank 1 has" in said


# An update that trains on nothing


def prompt(cut: Any, index: int) -> Sample:
    """Some are cut off before anything is to be predicted."""
    return {"input_ids": [5, 6, 7], "labels": [-100, -100, -100 if index in cut else 7]}


@pytest.mark.parametrize(
    ("cut", "options", "update"),
    [
        ([6, 7, 10, 11], {}, 3),
        ([4, 5, 6, 7], {"accumulate": 2}, 1),
        ([6], {}, None),
        ([6, 7], {"accumulate": 2}, None),
        (range(24), {"loss_scaling": "sample"}, None),
        (range(24), {"loss_scaling": "none"}, None),
    ],
)
def test_an_update_without_supervised_tokens_is_named_once(
    cut: Any, options: Any, update: int | None, caplog: Any
) -> None:
    samples = Samples(partial(prompt, cut), 24)
    loader = evenstep.DataLoader(
        samples, batch_size=2, collate_fn=evenstep.PadCollator(), **options
    )
    with caplog.at_level(logging.WARNING, "evenstep"):
        for _ in range(2):
            list(loader.steps())
    said = [message for message in caplog.messages if "supervised" in message]
    assert len(said) == (update is not None)
    for message in said:
        assert f"update {update} of epoch 0" in message
        assert str(cut[:2]) in message or options
        assert "StepInfo.global_supervised_tokens" in message
