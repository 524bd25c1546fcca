"""Whatever the user's code raises, be it an `Exception` or not, is one clear error on every rank.

Two ranks; on rank 1, one function of the user's raises. A job goes through many cases, each with a
loader of its own, since ranks survive them. A rank that hangs writes its stacks and fails the job.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import assert_nothing_runs
from ranks import Rank, run
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents

COUNT = 240
LATE = 120  # the sample, or the batch's sample, from which on it raises
OWN = ("SampleError", "CollateError", "LoaderDiedError", "InvariantError")


class Mine(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


RAISED: dict[str, Callable[[], BaseException]] = {
    "SystemExit: 3": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "Mine: of the user's own": lambda: Mine("of the user's own"),
    "Mute, whose text raised ZeroDivisionError": Mute,
    r"ValueError: \udcff is no text": lambda: ValueError("\udcff is no text"),
}
"""By what every rank's error says."""

FAULT: tuple[str, str] | None = None
"""Where this rank's code raises, and what. Batcher and workers are forked, and inherit it."""


def strike(where: str, *, index: int = LATE) -> None:
    if FAULT is not None and FAULT[0] == where and index >= LATE:
        raise RAISED[FAULT[1]]()


class Carried:
    """A part of a sample, or of a batch, that is pickled and unpickled on its way."""

    def __init__(self, what: str, index: int) -> None:
        self.what, self.index = what, index

    def __reduce__(self) -> Any:
        strike(f"pickling of a {self.what}", index=self.index)
        return carried, (self.what, self.index)


def carried(what: str, index: int) -> Carried:
    strike(f"unpickling of a {what}", index=index)
    return Carried(what, index)


class Samples(Documents):
    def __getitem__(self, index: int) -> dict[str, Any]:
        strike("dataset[i]", index=index)
        return {**super().__getitem__(index), "carried": Carried("sample", index)}

    def __len__(self) -> int:
        strike("len")
        return super().__len__()


class Batched(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        strike("__getitems__", index=max(indices))
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __init__(self) -> None:
        self.documents, self.at = Documents(COUNT), 0

    def __iter__(self) -> Iterator[Any]:
        strike("__iter__")
        while self.at < COUNT // 2:
            self.at += 1
            strike("__next__", index=4 * self.at)
            yield self.documents[self.at]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        strike("state_dict", index=4 * self.at)
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        strike("load_state_dict")
        self.at = state["at"]


class Sampler:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        for index in range(self.rank.rank, COUNT, self.rank.world_size):
            strike("sampler", index=index)
            yield index


class Planner(evenstep.FixedBatch):
    def propose(self, window: Any) -> Any:
        strike("propose", index=LATE * window.round)
        return super().propose(window)

    def settle(self, proposal: Any, messages: Any, rank: int) -> Any:
        strike("settle", index=LATE * proposal.window.round)
        return super().settle(proposal, messages, rank)

    def window_size(self, buffer_size: int) -> int:
        strike("window_size")
        return super().window_size(buffer_size)


def measure(sample: dict[str, Any]) -> int:
    strike("length_fn", index=sample["identity"])
    return len(sample["input_ids"])


def collate(samples: list[dict[str, Any]]) -> Any:
    last = max(sample["identity"] for sample in samples)
    strike("collate_fn", index=last)
    parts = [{k: v for k, v in sample.items() if k != "carried"} for sample in samples]
    return {**evenstep.PadCollator()(parts), "carried": Carried("batch", last)}


def begin_worker(worker: int) -> None:
    strike("worker_init_fn")


EVERYWHERE = """dataset[i]|__getitems__|length_fn|collate_fn|sampler|propose|settle|window_size|len|
__iter__|__next__|state_dict|load_state_dict|pickling of a sample""".replace("\n", "").split("|")
WITH_WORKERS = ["worker_init_fn", "unpickling of a sample"]
WITH_WORKERS += ["pickling of a batch", "unpickling of a batch"]
OF_A_STREAM = ("__iter__", "__next__", "state_dict", "load_state_dict")
IN_THE_TRAINER = ("len", "unpickling of a batch", "window_size", "load_state_dict")
"""There, what is no `Exception` stays what it is: an interrupt may come at any moment."""

Case = tuple[str, str, int]
"""Where it raises, what, and the number of workers."""


def places(workers: int) -> list[str]:
    return EVERYWHERE + (WITH_WORKERS if workers else [])


def loader_of(rank: Rank, case: Case) -> evenstep.DataLoader:
    where, _, workers = case
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    if where in OF_A_STREAM:
        dataset: Any = Stream()
    else:
        dataset = Batched(COUNT) if where == "__getitems__" else Samples(COUNT)
    if where == "sampler":
        options["sampler"] = Sampler(rank)
    return evenstep.DataLoader(
        dataset,
        policy=Planner(4),
        num_workers=workers,
        memory=evenstep.Memory(buffer_size=16, chunk_size=4),
        collate_fn=collate,
        length_fn=measure,
        worker_init_fn=begin_worker,
        **options,
    )


def go_through(rank: Rank, cases: list[Case]) -> list[tuple[int, str, str]]:
    """Steps, class and text of the error in each case."""
    return [fail(rank, case) for case in cases]


def fail(rank: Rank, case: Case) -> tuple[int, str, str]:
    global FAULT
    print("case", case, flush=True)  # so that the log of a rank that hangs says where
    where, what, _ = case
    loader = loader_of(rank, case)
    if where == "load_state_dict":
        list(itertools.islice(loader.steps(), 9))  # beyond the first round
        loader.load_state_dict(loader.state_dict())
    steps, error = 0, None
    FAULT = (where, what) if rank.rank == 1 else None
    try:
        for _ in loader.steps():
            steps += 1
    except BaseException as caught:
        error = caught
    FAULT = None
    loader.close()
    assert_nothing_runs(rank, case)
    return steps, type(error).__name__, evenstep.errors.described(error) if error else ""


def wrong(case: Case, own: Any, other: Any) -> str:
    """What is wrong with the outcome of a case; nothing, it is to be hoped."""
    (where, what, _), (steps, error, said) = case, own
    expected = set(OWN)
    if where in IN_THE_TRAINER:
        expected.add(what.partition(":")[0].partition(",")[0])
    names = {"SampleError": "sample", "CollateError": "step "}
    if error not in expected or what not in said or names.get(error, "") not in said:
        return "its own error"
    if other[1] != "PeerError" or "rank 1" not in other[2]:
        return "the other's error"
    if what not in other[2] and error != "KeyboardInterrupt":
        return "the reason that the other gives"
    if error == "SampleError" and other[0] != steps and where != "load_state_dict":
        return "unequal steps"
    early = ("sampler", "worker_init_fn", "__iter__", "load_state_dict", "len", "window_size")
    return "" if (steps == 0) == (where in early) else "its steps"


def check(cases: list[Case], folder: Path, within: float) -> None:
    other, own = run(go_through, 2, cases, folder=folder, within=within)
    outcomes = list(zip(cases, own, other, strict=True))
    found = [(wrong(*outcome), outcome) for outcome in outcomes if wrong(*outcome)]
    assert not found, "\n".join(map(str, found))


@pytest.mark.slow
def test_whatever_a_function_of_the_users_raises_is_named_on_every_rank(tmp_path: Path) -> None:
    raised = itertools.cycle(RAISED)
    cases = [(where, next(raised), workers) for workers in (0, 1) for where in places(workers)]
    check(cases, tmp_path, 80)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.timeout(900)
def test_every_exception_in_every_function(tmp_path: Path, workers: int) -> None:
    check(list(itertools.product(places(workers), RAISED, [workers])), tmp_path, 800)
