"""The same job gives the same steps, whichever client asks, when and in which order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import comparable, job_of, sources, steps_of, striped, with_prompt

import evenstep.service as es
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.messages import message


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    folder = tmp_path_factory.mktemp("interleaved")
    return job_of(folder, mesh=es.Mesh(DP=2, CP=2, PP=2), stop="all_exhausted", max_tokens=96)


@pytest.fixture(scope="module")
def alone(job: es.Job) -> dict[int, Any]:
    """Steps of each rank, taken one rank after the other."""
    with es.start(job, backend="local") as service:
        steps = {rank: comparable(steps_of(service.client(rank))) for rank in range(8)}
    assert len({len(each) for each in steps.values()}) == 1
    assert len(steps[0]) > 7, "too short to tell anything"
    return steps


@settings(max_examples=8)
@given(data=st.data())
def test_steps_do_not_depend_on_the_order_in_which_clients_ask(
    job: es.Job, alone: dict[int, Any], data: st.DataObject, start: Any
) -> None:
    loaders = data.draw(st.integers(1, 8), label="loaders")
    layout = striped(job, loaders, data.draw(st.sampled_from([1, 5, 64])))
    with start(job, loaders=layout, constructors=data.draw(st.integers(1, 2))) as service:
        clients = [service.client(rank) for rank in range(8)]
        taken: dict[int, list[Any]] = {rank: [] for rank in range(8)}
        for rank in data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=40), label="calls"):
            if data.draw(st.booleans(), label="asks for another step's plan"):
                service.plan(data.draw(st.integers(0, 3)))
            for each in steps_of(clients[rank], 1):
                taken[rank] += comparable([each])
        for rank, steps in taken.items():
            assert steps == alone[rank][: len(steps)]


def test_all_ranks_end_at_the_same_step_under_every_stop_rule(tmp_path: Path, start: Any) -> None:
    given = sources(tmp_path, counts=(40, 20, 24))
    for stop, everything in [("first_exhausted", False), ("all_exhausted", True)]:
        job = job_of(tmp_path, sources=given, stop=stop)
        with start(job, loaders=2) as service:
            clients = [service.client(DP=dp) for dp in range(2)]
            taken = [steps_of(client) for client in clients]
            assert len(taken[0]) == len(taken[1]) > 0
            assert all(next(client, None) is None for client in clients)
            status = service.status()["planner"]
        drawn = {sid for steps in taken for _, s in steps for ids in s.sample_ids for sid in ids}
        assert len(drawn) + status["left_over"] == sum(status["drawn"].values())
        assert (len(drawn) + status["left_over"] == 84) == everything
        assert status["left_over"] < 2
    with start(job_of(tmp_path, sources=given, stop="repeat")) as service:
        assert len(steps_of(service.client(0), 20)) == 20


def test_sources_of_unknown_size_end_as_well(tmp_path: Path, start: Any) -> None:
    class Stream:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return iter({"id": 5000 + k, "length": k % 7 + 2} for k in range(33))

    job = job_of(
        tmp_path,
        sources=[
            es.Source("stream", Stream(), transform=with_prompt),
            *sources(tmp_path, counts=(20, 20, 20))[:1],
        ],
        stop="all_exhausted",
        samples_per_step=8,
    )
    seen = []
    for loaders in (1, 3):
        with start(job, loaders=striped(job, loaders, 4)) as service:
            taken = [comparable(steps_of(service.client(rank))) for rank in range(2)]
            seen.append(taken)
            assert service.status()["planner"]["drawn"] == {"stream": 33, "code": 20}
    assert seen[0] == seen[1]


def test_state_goes_on_as_if_nothing_had_happened(tmp_path: Path, start: Any) -> None:
    job = job_of(tmp_path, samples_per_step=20, max_tokens=90, mesh=es.Mesh(DP=2, CP=2))
    with start(job) as service:
        whole = {rank: comparable(steps_of(service.client(rank), 9)) for rank in range(4)}
    for stopped in (1, 6):
        with start(job, loaders=2) as service:
            clients = [service.client(rank) for rank in range(4)]
            for client in clients:
                steps_of(client, stopped)
            service.plan(stopped + 2)  # as prefetching has planned ahead
            state = json.loads(json.dumps(service.state_dict()))
            with ThreadPoolExecutor(4) as threads:
                told = list(threads.map(lambda client: client.common_state(), clients))
            assert told == [clients[3].state_dict()] * 4 == [state] * 4
        with start(job, loaders=striped(job, 5, 3), state=state) as service:
            assert service.status()["planner"]["step"] == stopped
            for rank in range(4):
                rest = comparable(steps_of(service.client(rank), 9 - stopped))
                assert rest == whole[rank][stopped:]


def test_a_client_of_a_rank_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with es.start(job_of(tmp_path), backend="local") as service:
        with pytest.raises(ConfigurationError, match="rank 7 is not a client"):
            service.client(7)
        with pytest.raises(ConfigurationError, match="DP=2 must be from 0 to 1"):
            service.client(DP=2)
        with pytest.raises(ConfigurationError, match="axis='EP'"):
            service.client(EP=0)
        with pytest.raises(ConfigurationError, match="give one of them"):
            service.client(1, DP=1)
    with pytest.raises(ConfigurationError, match="constructors=3"):
        es.start(job_of(tmp_path), backend="local", constructors=3)


def test_a_closed_service_says_so_and_may_be_closed_again(tmp_path: Path, start: Any) -> None:
    with start(job_of(tmp_path)) as service:
        client = service.client(0)
        next(client)
    service.close()
    with pytest.raises(ConfigurationError, match="the service is closed"):
        service.client(0)
    with pytest.raises(ConfigurationError, match="client of rank 0 is closed"):
        next(client)


def exits(*arguments: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize("function", ["transform", "collate", "strategy", "supervised"])
def test_a_function_of_the_job_that_exits_is_an_error(
    function: str, tmp_path: Path, start: Any
) -> None:
    given = (
        {"sources": sources(tmp_path, transform=exits)}
        if function == "transform"
        else {function: exits}
    )
    with start(job_of(tmp_path, **given)) as service:
        for rank in range(2):
            with pytest.raises(EvenstepError, match=r"SystemExit.*: 3"):
                steps_of(service.client(rank), 1)


def test_a_role_answers_whatever_is_raised() -> None:
    from evenstep.service.remote.role_host import RoleHost

    class Role:
        def status(self) -> None:
            raise KeyboardInterrupt

    host = RoleHost()
    host.make_role(lambda timer, job: Role(), None)
    error = host.answer([message(Role.status)]).error
    assert isinstance(error, EvenstepError)
    assert f"KeyboardInterrupt was raised in {__file__}" in str(error)
