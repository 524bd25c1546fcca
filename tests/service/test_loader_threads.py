"""Messages to a loader come in several threads, and its buffers are filled in threads of its own:
a source that is slow keeps none of the others waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from service_world import Rows, job_of, rows, tokens_of_row

import evenstep.service as es
from evenstep.data.reader import StoredSample
from evenstep.service.job.source_layout import loader_tasks
from evenstep.service.source_loader import preparer, source_buffer

HANG = 20.0  # seconds


class Gate:
    """Samples of a source wait at it while it is shut; what a step needs has passed before."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = threading.Semaphore(0)

    def pass_through(self) -> None:
        self.waiting.release()
        assert self.opened.wait(HANG)

    def await_arrival(self) -> None:
        assert self.waiting.acquire(timeout=HANG)


gate = Gate()
raised: list[BaseException] = []
prepared_first = 0


def through_the_gate(row: Mapping[str, Any]) -> dict[str, Any]:
    global prepared_first
    if prepared_first:
        prepared_first -= 1
        time.sleep(0.025)  # which makes the source a slow one
    elif raised:
        raise raised[0]
    else:
        gate.pass_through()
    return tokens_of_row(row)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[es.Job]:
    global gate
    gate = Gate()
    monkeypatch.setattr(source_buffer, "_SLOW_SECONDS", 0.02)
    transforms = {"slow": through_the_gate, "quick": tokens_of_row}
    sources = [
        es.Source(name, Rows(rows(200, 1000 * k, 20)), transform=transform)
        for k, (name, transform) in enumerate(transforms.items())
    ]
    yield job_of(tmp_path, sources=sources, samples_per_step=8, buffer_size=15)
    gate.opened.set()
    raised.clear()


def in_thread(work: Callable[[], Any]) -> Any:
    """What a call gives that must not wait for anything."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(HANG)
    assert answers, "it waits"
    return answers[0]


def drawn_from(job: es.Job) -> tuple[es.SourceLoader, Any]:
    """A loader that has prepared and staged the first step, and its task."""
    global prepared_first
    prepared_first = 1000
    with es.start(job, backend="local") as service:
        (task,) = loader_tasks(service.plan(0), es.SourceLayout.of(job.names, 1))
    loader = es.SourceLoader(job.for_loader(job.names))
    loader.fill_in_background()
    for name in job.names:
        loader.ahead(name, 0, 10)
    prepared_first = 0
    loader.stage(task)
    return loader, task


def await_filled(loader: es.SourceLoader, name: str, count: int) -> None:
    for _ in range(int(HANG / 0.01)):
        if loader.status()["sources"][name] >= count:
            return
        time.sleep(0.01)
    pytest.fail(f"{name} is not filled: {loader.status()}")


def repeat(message: Callable[[], Any]) -> None:
    for _ in range(int(HANG / 0.01)):
        message()
        time.sleep(0.01)


def test_buffers_fill_once_they_were_drawn_from(job: es.Job) -> None:
    gate.opened.set()
    loader, _ = drawn_from(job)
    for name in job.names:
        await_filled(loader, name, 15)
    before = threading.active_count()
    loader.close()
    assert threading.active_count() < before
    assert loader.status()["sources"] == dict.fromkeys(job.names, 15)


def test_a_sample_that_takes_long_keeps_no_other_waiting(job: es.Job) -> None:
    loader, task = drawn_from(job)
    gate.await_arrival()  # a thread that fills is at the gate
    await_filled(loader, "quick", 15)
    assert in_thread(lambda: loader.ahead("slow", 5, 5)).end == 10
    assert in_thread(lambda: loader.ahead("quick", 10, 1)).end == task.samples.counts()[1] + 15
    assert in_thread(lambda: loader.ahead("quick", 15, 40)).end == 55
    fetched = [in_thread(lambda bucket=bucket: loader.fetch(0, bucket)) for bucket in range(2)]
    assert sum(len(each.samples) for each in fetched) == 8
    keys = [(None, 0), (None, 1)]
    in_thread(lambda: loader.release(0, keys))
    assert in_thread(loader.status)["staged_steps"] == []
    asked = threading.Thread(target=lambda: loader.ahead("slow", 10, 1), daemon=True)
    asked.start()
    # Only one sample at a time is prepared of a slow source, so only for one is waited.
    assert not gate.waiting.acquire(timeout=0.05)
    gate.opened.set()
    asked.join(HANG)
    assert not asked.is_alive()
    await_filled(loader, "slow", 15)
    loader.close()


def test_what_a_fill_raises_is_the_answer_to_the_next_message(job: es.Job) -> None:
    raised.append(KeyboardInterrupt("the transform's own"))
    loader, task = drawn_from(job)
    for message in (
        lambda: loader.fetch(0, 0),
        lambda: loader.stage(task),
        lambda: loader.ahead("quick", 0, 10),
    ):
        with pytest.raises(KeyboardInterrupt, match="the transform's own"):
            repeat(message)
    assert loader.status()["loader"] == 0
    loader.close()


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20])
def test_many_threads_get_what_one_gets(tmp_path: Path, buffer_bytes: int) -> None:
    """Staged by two threads at once, while what comes next is asked for and filled."""
    job = job_of(tmp_path, buffer_size=6, buffer_bytes=buffer_bytes, stop="all_exhausted")
    with es.start(job, backend="local") as service:
        plans = [plan for n in range(100) if (plan := service.plan(n)) is not None]
        tasks = [loader_tasks(plan, es.SourceLayout.of(job.names, 1))[0] for plan in plans]
        expected = []
        for task in tasks:
            service._loaders[0].stage(task)
            expected.append([service._loaders[0].fetch(task.step, b).samples for b in range(2)])
    loader = es.SourceLoader(job.for_loader(job.names))
    loader.fill_in_background()
    found: dict[tuple[int, int], Any] = {}

    def take(number: int) -> None:
        for task in tasks[number::2]:
            loader.stage(task)
            for bucket in range(2):
                found[task.step, bucket] = loader.fetch(task.step, bucket).samples

    def ask() -> None:
        for position in range(0, 40, 5):
            for name in job.names:
                loader.ahead(name, position, 5)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(2)]
    threads.append(threading.Thread(target=ask))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    loader.close()
    assert len(expected) > 5
    assert [[found[task.step, b] for b in range(2)] for task in tasks] == expected


class Clock:
    """Plays `time`: a sample advances it by seconds that pass, that its thread computes, and that
    all threads of the process compute."""

    def __init__(self) -> None:
        self.now = [0.0, 0.0, 0.0]

    def pass_by(self, row: Mapping[str, Any]) -> dict[str, Any]:
        self.now = [now + more for now, more in zip(self.now, row["seconds"], strict=True)]
        return {"input_ids": [1]}

    def perf_counter(self) -> float:
        return self.now[0]

    def thread_time(self) -> float:
        return self.now[1]

    def process_time(self) -> float:
        return self.now[2]


@pytest.mark.parametrize(
    ("passed", "computed", "by_all", "taken"),
    [
        pytest.param(0.03, 0.03, 0.03, 0.03, id="alone"),
        pytest.param(0.12, 0.03, 0.12, 0.03, id="beside three threads that compute"),
        pytest.param(0.12, 0.03, 0.15, 0.03, id="on two cores"),
        pytest.param(0.5, 0.01, 0.01, 0.5, id="waiting for storage"),
        pytest.param(0.5, 0.01, 0.04, 0.47, id="waiting beside three others"),
    ],
)
def test_threads_that_compute_do_not_make_a_source_slow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passed: float,
    computed: float,
    by_all: float,
    taken: float,
) -> None:
    clock = Clock()
    source = es.Source("web", Rows(rows(1, 0, 5)), transform=clock.pass_by)
    measure = job_of(tmp_path, sources=[source]).measure
    monkeypatch.setattr(preparer, "time", clock)
    stored = StoredSample(0, 0, 0, 0, {"seconds": (passed, computed, by_all)})
    outcome = preparer.Preparer([source], measure, workers=0, name="").prepare("web", [stored])
    assert outcome.seconds == pytest.approx(taken)
