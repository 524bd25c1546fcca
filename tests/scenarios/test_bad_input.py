"""Whatever is wrong on one rank is an error on every rank, which names the culprit; and no hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run_all

import evenstep
from documents import Documents
from evenstep.errors import MismatchError, PeerError, SampleError
from evenstep.loader.transport.session import Session
from loader_options import grouped

Sample = dict[str, Any]


class Spoiled(Documents):
    """Documents of which one is not what it should be."""

    def __init__(self, index: int, spoil: Callable[[Sample], Sample]) -> None:
        super().__init__(200)
        self.index = index
        self.spoil = spoil

    def __getitem__(self, index: int) -> Sample:
        sample = super().__getitem__(index)
        return self.spoil(sample) if index == self.index else sample


def broken(sample: Sample) -> Sample:
    raise OSError("no such picture")


def emptied(sample: Sample) -> Sample:
    return {**sample, "input_ids": sample["input_ids"][:0], "labels": sample["labels"][:0]}


def enlarged(sample: Sample) -> Sample:
    tokens = torch.ones(5000, dtype=torch.int64)
    return {**sample, "input_ids": tokens, "labels": tokens.clone()}


def unmeasured(sample: Sample) -> Sample:
    return {**sample, "input_ids": None}


def length_of(sample: Sample) -> int:
    return len(sample["input_ids"])


class FailingCollate:
    """Pads, and fails at one document."""

    def __init__(self, identity: int) -> None:
        self.identity = identity

    def __call__(self, samples: list[Sample]) -> Any:
        if any(sample["identity"] == self.identity for sample in samples):
            raise ValueError("ragged")
        return evenstep.PadCollator()(samples)


def forgets_labels(samples: list[Sample]) -> Any:
    batch = evenstep.PadCollator()(samples)
    batch["labels"][:, 3:] = -100
    return batch


def go_through(rank: Rank, cases: list[list[dict[str, Any]]]) -> list[tuple[str, str, int]]:
    """The error, its text and the steps of an epoch with this rank's options of each case."""
    found = []
    for case in cases:
        print("case", case, flush=True)  # so that the log of a rank that hangs says where
        defaults = {"dataset": Documents(200), "policy": evenstep.TokenBudget(1024)}
        loader = evenstep.DataLoader(
            **grouped(**{**defaults, "buffer_size": 16, **case[rank.rank]})
        )
        steps, error = 0, None
        try:
            for _ in loader:
                steps += 1
        except evenstep.EvenstepError as caught:
            error = caught
        loader.close()
        found.append((type(error).__name__ if error else "", str(error or ""), steps))
    return found


WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}

# Options of rank 1, its error and what it says. Without shuffling, odd indices are rank 1's.
ON_RANK_1: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"dataset": Spoiled(71, broken)}, "SampleError", ("OSError", "sample 71", "no such picture")),
    ({"dataset": Spoiled(1, broken)}, "SampleError", ("OSError", "sample 1", "no such picture")),
    ({"dataset": Spoiled(71, emptied)}, "SampleError", ("sample 71", "length 0", "filter")),
    ({"dataset": Spoiled(71, enlarged)}, "TooLongError", ("sample 71", "5,000", "max_tokens")),
    (
        {"dataset": Spoiled(71, unmeasured), "length_fn": length_of},
        "SampleError",
        ("sample 71", "length_fn", "TypeError"),
    ),
    ({"collate_fn": FailingCollate(71)}, "SampleError", ("sample 71", "ValueError", "ragged")),
    ({"collate_fn": FailingCollate(199)}, "SampleError", ("sample 199", "ragged", "rank 1")),
    ({"collate_fn": forgets_labels}, "CollateError", ("supervised tokens", "rank 1")),
]


# Without workers, and with them one case of each process: worker, planner and collate.
FAILURES = [*(({}, *case) for case in ON_RANK_1), *((WORKERS, *ON_RANK_1[n]) for n in (0, 3, 4, 5))]


def failures(rank: Rank) -> list[tuple[str, str, int]]:
    # The other rank must see nothing wrong by itself.
    cases = [
        [{**workers, "length_fn": options.get("length_fn")}, {**workers, **options}]
        for workers, options, _, _ in FAILURES
    ]
    return go_through(rank, cases)


DIFFERENCES = {
    "policy": {"policy": evenstep.FixedBatch(4)},
    "policy's options": {"policy": evenstep.TokenBudget(max_tokens=1025)},
    "seed": {"seed": 1, **WORKERS},
    "dataset size": {"dataset": Documents(202)},
    "buffer_size": {"buffer_size": 17},
    "exhausted": {"exhausted": "stop"},
    "loss_scaling": {"loss_scaling": "sample"},
    "shuffle": {"shuffle": True},
    "drop_last": {"drop_last": True},
}


def differences(rank: Rank) -> list[tuple[str, str, int]]:
    return go_through(rank, [[{}, options] for options in DIFFERENCES.values()])


def different_epochs(rank: Rank) -> None:
    """All ranks say so."""
    loader = evenstep.DataLoader(Documents(50), batch_size=4)
    loader.set_epoch(rank.rank)
    with pytest.raises(MismatchError):
        list(loader)


def different_workers(rank: Rank) -> list[tuple[str, str, int]]:
    return go_through(rank, [[{**WORKERS, "chunk_size": 3, "prefetch": 2}, {"prefetch": 7}]])


def fails_and_goes_on(rank: Rank) -> Any:
    """An error ends the pass, not the loader: the next pass may leave the sample out."""
    dataset = Spoiled(71, broken) if rank.rank else Documents(200)
    loader = evenstep.DataLoader(dataset, batch_size=4, **WORKERS)
    try:
        for _ in loader:
            pass
    except (SampleError, PeerError) as error:
        caught = type(error).__name__
    dist.barrier()
    dataset.index = -1
    return caught, sum(len(step.indices) for _, step in loader.steps())


def stops_with_the_shortest(rank: Rank) -> Any:
    loader = evenstep.DataLoader(
        Documents(1000),
        sampler=range(20) if rank.rank else range(1000),
        batch_size=2,
        memory=evenstep.Memory(buffer_size=8),
        faults=evenstep.Faults(exhausted="stop"),
        **WORKERS,
    )
    with pytest.warns(UserWarning, match="not trained on") if not rank.rank else nullcontext():
        return [step.indices for _, step in loader.steps()]


# Messages that are damaged on their way: in all copies, in one, or by a rank that lies


def damaged(message: bytes) -> bytes:
    return message[:-1] + bytes([message[-1] ^ 1]) if message else message


# The number of rank 1's message, what it is, and at whom it arrives damaged.
DAMAGE = [
    (0, "account of the job of round 0", (0, 1)),
    (1, "hello of round 0", (0, 1)),
    (4, "proposal of round 1", (0,)),
    (5, "receipt of round 1", (1,)),
]


def receive_damaged(rank: Rank) -> list[tuple[str, str, int]]:
    reply, found = Session.reply, []
    for at, _, victims in DAMAGE:
        exchanges = iter(range(10**6))

        def changed(session: Session, messages: Sequence[bytes]) -> None:
            if next(exchanges) == at and rank.rank in victims:  # noqa: B023
                messages = [messages[0], damaged(messages[1])]
            reply(session, messages)

        Session.reply = changed  # type: ignore[method-assign]
        found += go_through(rank, [[{}, {}]])
    Session.reply = reply  # type: ignore[method-assign]
    return found


# The tests, of one job


FUNCTIONS = (
    failures,
    differences,
    receive_damaged,
    different_epochs,
    different_workers,
    fails_and_goes_on,
    stops_with_the_shortest,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """[ranks] what came of each function."""
    folder = tmp_path_factory.mktemp("ranks")
    values = run_all(*FUNCTIONS, world_size=2, folder=folder, within=150)
    return {each.__name__: value for each, value in zip(FUNCTIONS, values)}


def test_a_failure_on_one_rank_is_named_on_both(found: dict[str, list[Any]]) -> None:
    for (_, options, error, says), peer, culprit in zip(FAILURES, *found["failures"], strict=True):
        assert (culprit[0], peer[0]) == (error, "PeerError"), (culprit, peer)
        assert peer[1].startswith(f"rank 1 failed: {error}: ")
        for word in says:
            assert word in culprit[1]
            assert word in peer[1]
        assert "Traceback" not in culprit[1]
        # The other rank has made every step that the culprit made, which ended for both where
        # planning failed, and at the culprit's own step where collating did.
        assert peer[2] >= culprit[2] if "collate_fn" in options else peer[2] == culprit[2]


def test_ranks_that_were_built_differently_all_say_in_what(found: dict[str, list[Any]]) -> None:
    for outcomes in found["differences"]:
        for name, (error, message, _) in zip(DIFFERENCES, outcomes, strict=True):
            assert error == "MismatchError", message
            assert message.startswith(f"ranks differ in {name.partition(chr(39))[0]}: rank 0")
            assert "rank 1 has" in message


def test_workers_and_chunks_may_differ_between_ranks(found: dict[str, list[Any]]) -> None:
    (mine,), (theirs,) = found["different_workers"]
    assert mine == theirs
    assert mine[0] == ""
    assert mine[2] > 2


def test_a_pass_after_a_failed_one_is_whole(found: dict[str, list[Any]]) -> None:
    assert found["fails_and_goes_on"] == [("PeerError", 100), ("SampleError", 100)]


def test_stop_ends_the_epoch_for_all_however_much_the_others_still_have(
    found: dict[str, list[Any]],
) -> None:
    assert found["stops_with_the_shortest"] == [[(i, i + 1) for i in range(0, 20, 2)]] * 2


def test_damage_is_named_by_every_rank(found: dict[str, list[Any]]) -> None:
    for (_, kind, victims), *outcomes in zip(DAMAGE, *found["receive_damaged"], strict=True):
        said = f"rank 1 sent a damaged {kind}: "
        for number, (error, message, _) in enumerate(outcomes):
            if number in victims:
                assert error == "DamagedMessageError"
                assert message.startswith(said)
            else:
                assert error == "PeerError"
                assert message.startswith(f"rank {victims[0]} failed: DamagedMessageError: {said}")
