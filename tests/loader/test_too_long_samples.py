"""`too_long`: each token, label and mask of what is trained on, its gradient, the count and exact
resume, for every choice. On two ranks: tests/scenarios/test_too_long_ranks.py."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from streams import StatefulStream, Stream

import evenstep
from documents import Documents
from evenstep.errors import SampleError
from evenstep.testing import assert_exact_resume

LIMIT, COUNT = 48, 30
DATA = Documents(COUNT, prompts=True)
LONG = [i for i, length in enumerate(DATA.lengths) if length > LIMIT]
POLICIES = {
    "padded": evenstep.Even(LIMIT),
    "packed": evenstep.Even(LIMIT, packed=True),
    "budget": evenstep.TokenBudget(LIMIT),
    "best fit": evenstep.SequencePacking(LIMIT),
    "micro-batches": evenstep.WorkloadPacking(40, micro_batches=2, max_tokens=LIMIT),
}
CHOICES = [
    (name, choice)
    for name in POLICIES
    for choice in ("skip", "truncate", "split", "alone")
    if (name, choice) != ("micro-batches", "alone")
]


class StreamOf(StatefulStream):
    def __init__(self) -> None:
        super().__init__([DATA[i] for i in range(COUNT)])


def loader_of(policy: str, choice: str, **options: Any) -> evenstep.DataLoader:
    given = {"memory": evenstep.Memory(buffer_size=16), "shuffle": True, "seed": 3, **options}
    dataset: Any = DATA
    if choice == "alone":
        given["memory"] = evenstep.Memory(buffer_size=16, longest=256)
    if choice == "split":
        dataset = StreamOf()
        del given["shuffle"], given["seed"]
    return evenstep.DataLoader(dataset, policy=POLICIES[policy], too_long=choice, **given)


def expected(choice: str) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of all that is trained on."""
    found = []
    for index in range(COUNT):
        tokens, labels = (DATA[index][name].tolist() for name in ("input_ids", "labels"))
        length = len(tokens)
        cuts = [0, length]
        if length > LIMIT:
            parts = -(-length // LIMIT)
            split = [part * length // parts for part in range(parts + 1)]
            of = {"skip": [], "truncate": [0, LIMIT], "split": split, "alone": cuts}
            cuts = of[choice]
        found += [(tokens[i:j], labels[i:j]) for i, j in pairwise(cuts)]
    return found


def rows_of(batch: Any) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of each sample of a batch; the first label of each is masked."""
    tokens, labels = batch["input_ids"], batch["labels"]
    if "cu_seqlens" in batch:
        assert batch["position_ids"].shape == tokens.shape
        ends = batch["cu_seqlens"].tolist()
        for i, j in pairwise(ends):
            assert batch["position_ids"].flatten()[i:j].tolist() == list(range(j - i))
        spans = [(0, i, j) for i, j in pairwise(ends)]
        tokens, labels = tokens.reshape(1, -1), labels.reshape(1, -1)
    else:
        spans = [(row, 0, int(mask.sum())) for row, mask in enumerate(batch["attention_mask"])]
    return [(tokens[r, i:j].tolist(), labels[r, i:j].tolist()) for r, i, j in spans]


def masked(samples: list[tuple[list[int], list[int]]]) -> list[Any]:
    return sorted((tokens, [-100, *labels[1:]]) for tokens, labels in samples)


@pytest.mark.parametrize(("policy", "choice"), CHOICES)
def test_every_token_and_label_is_what_the_choice_says_and_comes_once(
    policy: str, choice: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen, steps = [], []
    with caplog.at_level(logging.WARNING, logger="evenstep"):
        for batch, step in loader_of(policy, choice).steps():
            steps.append(step)
            real = [b for b, scale in zip(batch, step.loss_scales) if scale or step.samples > 1]
            for one in real if step.loss_scales else [batch]:
                rows = rows_of(one)
                tokens = sum(len(t) for t, _ in rows)
                room = tokens if POLICIES[policy].packed else one["input_ids"].numel()
                assert room <= LIMIT or (choice == "alone" and len(rows) == 1)
                seen += rows
    if policy != "micro-batches":  # whose fillers are batches, too
        assert masked(seen) == masked(expected(choice))
    assert sum(step.samples for step in steps) == len(expected(choice))
    assert sum(step.tokens for step in steps) == sum(len(tokens) for tokens, _ in expected(choice))
    counts = [step.too_long for step in steps]
    assert counts == sorted(counts)
    assert counts[-1] == len(LONG)
    said = [message for message in caplog.messages if "more than max_tokens=48" in message]
    assert len(said) == 1
    assert f"too_long={choice!r}" in said[0]


@pytest.mark.parametrize(
    ("policy", "choice"),
    [("padded", "truncate"), ("padded", "split"), ("packed", "skip"), ("packed", "alone")],
)
def test_a_resume_after_any_step_makes_the_same_steps_with_the_same_counts(
    policy: str, choice: str
) -> None:
    # The steps compared hold `StepInfo.too_long`.
    assert assert_exact_resume(lambda: loader_of(policy, choice), epochs=1, every=2) > 2


@pytest.mark.parametrize("choice", ["skip", "truncate", "split", "alone"])
def test_counts_go_on_over_epochs_and_new_windows(choice: str) -> None:
    loader = loader_of("padded", choice)
    for epoch in range(2):
        *_, (_, last) = loader.steps()
        assert last.too_long == (epoch + 1) * len(LONG)
    steps = loader.steps()
    for _ in range(4):
        next(steps)
    state = loader.state_dict()
    other = loader_of("padded", choice, memory=evenstep.Memory(buffer_size=8))
    if choice == "alone":
        memory = evenstep.Memory(buffer_size=8, longest=256)
        other = evenstep.DataLoader(
            DATA, policy=POLICIES["padded"], too_long=choice, memory=memory, shuffle=True, seed=3
        )
    other.load_state_dict(state)
    *_, (_, last) = other.steps()
    assert last.too_long == 3 * len(LONG)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_without_a_state_is_split_and_replayed(workers: int) -> None:
    def make() -> evenstep.DataLoader:
        return evenstep.DataLoader(
            Stream([DATA[i] for i in range(COUNT)]),
            policy=POLICIES["padded"],
            too_long="split",
            num_workers=workers,
            memory=evenstep.Memory(buffer_size=16, chunk_size=4),
            faults=evenstep.Faults(replay=True),
        )

    loader = make()
    whole = [step.tokens for _, step in loader.steps()]
    loader = make()
    steps = loader.steps()
    first = [next(steps)[1].tokens for _ in range(len(whole) - 6)]
    other = make()
    other.load_state_dict(loader.state_dict())
    rest = [step.tokens for _, step in other.steps()]
    assert first + rest == whole
    assert sum(whole) == int(DATA.lengths.sum())


def test_samples_are_cut_to_whole_multiples_and_bad_ones_still_count_as_bad() -> None:
    data: list[Any] = [{"input_ids": list(range(1, n + 1))} for n in (5, 20, 30)] + [None]
    loader = evenstep.DataLoader(
        data,
        policy=evenstep.Even(20),
        too_long="truncate",
        collate_fn=evenstep.PadCollator(pad_to_multiple_of=8),
        faults=evenstep.Faults(skip_bad_samples=1),
    )
    steps = [(batch, step) for batch, step in loader.steps()]
    assert sorted(step.tokens for _, step in steps) == [5, 16, 16]
    assert steps[-1][1].too_long == 2
    assert [bad.index for bad in loader.skipped] == [3]


IMAGE = 9


def with_image(first: int, patches: int, length: int, *, kinds: bool) -> dict[str, Any]:
    """A sample whose image's tokens begin at `first`; as many pixels as tokens by chance."""
    tokens = torch.ones(length, dtype=torch.int64)
    tokens[first : first + patches] = IMAGE
    grid = torch.tensor([[1, 2, 2 * patches]])
    sample = {"input_ids": tokens, "pixel_values": torch.ones(length, 3), "image_grid_thw": grid}
    return {**sample, "mm_token_type_ids": (tokens == IMAGE).long()} if kinds else sample


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (with_image(2, 8, 30, kinds=True), None),
        (with_image(2, 10, 30, kinds=True), None),
        (with_image(2, 11, 30, kinds=True), "would cut tokens of an image"),
        (with_image(20, 4, 30, kinds=True), "would cut tokens of an image"),
        (with_image(2, 8, 30, kinds=False), "no mm_token_type_ids that say which tokens"),
        (
            {"chosen_ids": [1] * 20, "rejected_ids": [1] * 10, "n": 30},
            "not one sequence of input_ids",
        ),
    ],
)
def test_tokens_of_images_and_answers_of_pairs_are_never_cut(sample: Any, said: str | None) -> None:
    loader = evenstep.DataLoader(
        [sample],
        policy=evenstep.Even(12),
        too_long="truncate",
        length_fn=(lambda sample: sample["n"]) if "n" in sample else None,
        collate_fn=list,
        loss_scaling="sample",
    )
    if said is not None:
        with pytest.raises(SampleError, match=f"sample 0: it has 30 tokens.*{said}"):
            list(loader.steps())
        return
    (((kept,), step),) = loader.steps()
    assert step.tokens == len(kept["input_ids"]) == len(kept["mm_token_type_ids"]) == 12
    assert len(kept["pixel_values"]) == 30
    assert torch.equal(kept["input_ids"], sample["input_ids"][:12])


def test_alone_refuses_what_memory_has_no_room_for() -> None:
    data = [{"input_ids": np.ones(n, np.int64)} for n in (3, 20, 31)]
    memory = evenstep.Memory(longest=30)
    loader = evenstep.DataLoader(data, policy=evenstep.Even(8), too_long="alone", memory=memory)
    with pytest.raises(SampleError, match="sample 2 has 31 tokens, over longest=30"):
        list(loader.steps())
