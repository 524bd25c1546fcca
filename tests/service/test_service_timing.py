"""Roles that run side by side, each in a thread, with random delays.

Messages are copied by pickle, as between processes. They may come twice, and a loader may restart
between any two of them.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import comparable, job_of, steps_of

import evenstep.service as es
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.job.roles import groups_of
from evenstep.service.messages import Message, Reply

PATIENCE = 60.0  # seconds; whoever waits longer hangs
TWICE = ("plan", "stage", "fetch", "deliver", "release", "fill", "refresh")


class Answer:
    def __init__(self, future: Future[bytes]) -> None:
        self.future = future

    def result(self) -> Any:
        return pickle.loads(self.future.result(PATIENCE))


class Actor:
    """Plays a role in a thread, one message after the other, or in several where it allows that."""

    def __init__(
        self, make: Callable[[], Any], seed: int, *, restart_at: int, twice: float
    ) -> None:
        """
        Args:
            restart_at: number of the message before which the role restarts.
            twice: share of messages that come twice.
        """
        self.make, self.role = make, make()
        self.chance = random.Random(seed)
        self.left, self.twice = restart_at, twice
        self.threads = ThreadPoolExecutor(1 if hasattr(self.role, "plan") else 4)

    def send(self, message: str, *arguments: Any) -> Reply:
        sent = pickle.dumps(arguments)
        if message in TWICE and self.chance.random() < self.twice:
            self.threads.submit(self.play, message, sent)
        return Answer(self.threads.submit(self.play, message, sent))

    def send_all(self, messages: Sequence[Message]) -> Reply:
        sent = [(message, pickle.dumps(arguments)) for message, arguments in messages]
        if self.chance.random() < self.twice:
            self.threads.submit(self.play_all, sent)
        return Answer(self.threads.submit(self.play_all, sent))

    def play_all(self, sent: Sequence[tuple[str, bytes]]) -> bytes:
        return pickle.dumps([pickle.loads(self.play(*each)) for each in sent])

    def play(self, message: str, sent: bytes) -> bytes:
        self.left -= 1
        if self.left == 0:
            self.role.close()
            self.role = self.make()
        time.sleep(self.chance.random() * 0.001)
        return pickle.dumps(getattr(self.role, message)(*pickle.loads(sent)))


@contextmanager
def side_by_side(
    job: es.Job, seed: int, *, loaders: int, constructors: int, restart_at: int, twice: float
) -> Iterator[tuple[list[es.RankClient], list[Actor]]]:
    layout = es.SourceLayout.of(job.names, loaders, stripe=4)
    chance = random.Random(seed)
    with ExitStack() as stack:

        def actor(make: Callable[[], Any], restart_at: int = 0) -> Actor:
            made = Actor(make, chance.getrandbits(32), restart_at=restart_at, twice=twice)
            stack.callback(made.threads.shutdown, wait=True, cancel_futures=True)
            return made

        def loader(number: int) -> es.SourceLoader:
            return es.SourceLoader(job.for_loader(layout.shares[number], number))

        having = [actor(lambda n=n: loader(n), restart_at) for n in range(len(layout.shares))]
        pool = es.LoaderPool(layout, having, columns=job.columns)
        planner = actor(lambda: es.Planner(job, pool))
        clients: dict[int, es.RankClient] = {}
        for groups in groups_of(job, constructors):

            def constructor(groups: list[int] = groups) -> DataConstructor:
                return DataConstructor(job, groups, planner, having, layout)

            builder = actor(constructor)
            for rank in builder.role.clients:
                clients[rank] = es.RankClient(
                    job.tree, rank, builder, planner, prefetch=job.memory.prefetch
                )
        yield [clients[rank] for rank in range(len(job.tree))], having


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    folder = tmp_path_factory.mktemp("timing")
    return job_of(folder, mesh=es.Mesh(DP=2, CP=2), stop="first_exhausted", buffer_size=24)


@pytest.fixture(scope="module")
def expected(job: es.Job) -> list[Any]:
    with es.start(job, backend="local") as service:
        return [comparable(steps_of(service.client(rank))) for rank in range(len(job.tree))]


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    loaders=st.integers(1, 5),
    constructors=st.integers(1, 2),
    restart_at=st.just(0) | st.integers(1, 60),
    twice=st.sampled_from([0.0, 0.3]),
)
def test_every_rank_gets_the_same_steps_whatever_the_timing(
    job: es.Job,
    expected: list[Any],
    seed: int,
    loaders: int,
    constructors: int,
    restart_at: int,
    twice: float,
) -> None:
    chance = random.Random(seed)
    with (
        side_by_side(
            job,
            seed,
            loaders=loaders,
            constructors=constructors,
            restart_at=restart_at,
            twice=twice,
        ) as (clients, having),
        ThreadPoolExecutor(len(clients)) as trainers,
    ):

        def train(client: es.RankClient, pause: float) -> list[Any]:
            taken = []
            while step := steps_of(client, 1):
                taken += step
                time.sleep(pause)
            return comparable(taken)

        trained = [trainers.submit(train, c, chance.random() * 0.005) for c in clients]
        assert [future.result(PATIENCE) for future in trained] == expected
        if not twice:  # who asks for a step once more when all is over has it staged once more
            until = time.monotonic() + PATIENCE
            while any(actor.role.status()["staged_steps"] for actor in having):
                assert time.monotonic() < until, "samples stay staged that all have received"
                time.sleep(0.01)
    assert len(expected[0]) > 4
