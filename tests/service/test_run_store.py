"""What a run's store holds is whole, in order, and of one planner, whatever is cut off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_storage import Crash, FaultyStorage, crash_after, crash_before, torn
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError, SupersededError
from evenstep.service.planner.store.run_store import RunStore


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    FaultyStorage.clear()
    yield
    FaultyStorage.clear()


def opened(url: Any, **options: Any) -> RunStore:
    store = RunStore(url, "run", **options)
    store.begin()
    return store


def reports_of(store: RunStore, step: int = 0) -> list[tuple[int, int, int, Any]]:
    return [(r.planned_step, r.step, r.rank, r.signals) for r in store.reports_since(step)]


@pytest.mark.parametrize("kind", ["folder", "file", "memory"])
def test_a_state_and_reports_are_read_back_by_the_next_planner(tmp_path: Path, kind: str) -> None:
    url = {
        "folder": tmp_path / "store",
        "file": f"file://{tmp_path}/store",
        "memory": f"memory://{tmp_path.name}/store",
    }[kind]
    store = opened(url)
    assert store.newest_state() is None
    store.save_state(3, {"step": 3})
    store.add_report(4, 1, 0, {"loss": 0.5})
    store.add_planned(4)
    store.add_report(5, 2, 1, {"loss": 1.5})
    store.save_state(5, {"step": 5})
    again = opened(url)
    assert again.newest_state() == (5, {"step": 5})
    assert again.newest_state(4) == (3, {"step": 3})
    assert again.newest_state(2) is None
    assert reports_of(again, 4) == [(4, 1, 0, {"loss": 0.5}), (5, 2, 1, {"loss": 1.5})]
    assert reports_of(again, 5) == [(5, 2, 1, {"loss": 1.5})]
    assert again.planned == 5
    for write in (lambda: store.save_state(6, {}), lambda: store.add_report(6, 6, 0, {})):
        with pytest.raises(SupersededError, match="has taken over"):
            write()
    assert opened(url).newest_state() is not None
    assert RunStore(url, "another").newest_state() is None


def test_a_file_cut_off_or_changed_at_any_byte_is_no_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    store.save_state(1, {"value": "a"})
    store.save_state(2, {"value": "b"})
    path = sorted((tmp_path / "run" / "states").iterdir())[-1]
    whole = path.read_bytes()
    changed = [bytes([*whole[:k], whole[k] ^ 1, *whole[k + 1 :]]) for k in range(len(whole))]
    with caplog.at_level(logging.WARNING, "evenstep"):
        for content in [*(whole[:k] for k in range(len(whole))), *changed, whole + b" "]:
            path.write_bytes(content)
            assert store.newest_state() == (1, {"value": "a"})
    assert path.name in caplog.text
    path.write_bytes(whole)
    assert store.newest_state() == (2, {"value": "b"})
    path.with_name(path.name.replace("2-", "7-")).write_bytes(whole)  # another's content
    assert store.newest_state() == (2, {"value": "b"})


def test_a_report_cut_off_was_never_made_if_it_is_the_last() -> None:
    url, storage = "faulty://store", FaultyStorage()
    store = opened(url)
    for step in range(3):
        store.add_report(step, step, 0, {"loss": step})
    first, _, last = sorted(storage.find("/store/run/reports"))
    whole = storage.cat_file(last)
    for length in range(len(whole)):
        storage.pipe_file(last, whole[:length])
        assert [r[1] for r in reports_of(opened(url))] == [0, 1]
    storage.pipe_file(first, storage.cat_file(first)[:-1])
    with pytest.raises(ConfigurationError, match=f"{Path(first).name}.*is damaged"):
        opened(url)


def test_the_newest_states_are_kept_and_the_reports_since(tmp_path: Path) -> None:
    store = opened(tmp_path, keep=4)
    for step in range(36):
        store.add_report(step, step - 3, 0, {"loss": step})
        store.add_planned(step)
        store.save_state(step, {"step": step})
    kept = [int(path.name[:12]) for path in sorted((tmp_path / "run" / "states").iterdir())]
    assert kept == [31, 32, 33, 34, 35]
    again = opened(tmp_path, keep=4)
    assert [r[0] for r in reports_of(again, 31)] == [31, 32, 33, 34, 35]
    with pytest.raises(ConfigurationError, match="since step 20 are not kept any more"):
        again.reports_since(20)


def script(store: RunStore, done: list[Any]) -> None:
    """Some steps of a planner; notes what has returned."""
    store.begin()
    begin = store.planned
    for step in range(begin, begin + 4):
        store.add_report(step, step, 0, {"loss": step})
        done.append((step, step, 0, {"loss": step}))
        store.save_state(step, {"step": step})
        done.append(step)


@pytest.mark.parametrize("fault", [crash_before, torn, crash_after])
def test_a_crash_at_any_operation_loses_nothing_that_had_returned(fault: Any) -> None:
    for second in (None, 5):  # a planner that begins, and ends at its 5th operation, in between
        for at in range(200):
            FaultyStorage.clear()
            FaultyStorage.strike(at, fault)
            done: list[Any] = []
            crashed = False
            try:
                script(RunStore("faulty://store", "run", keep=2), done)
            except Crash:
                crashed = True
            if second is not None:
                FaultyStorage.strike(second, fault)
                with pytest.raises(Crash):
                    script(RunStore("faulty://store", "run", keep=2), done)
            FaultyStorage.strike(-1, fault)
            store = RunStore("faulty://store", "run", keep=2)
            store.begin()
            states = [each for each in done if isinstance(each, int)]
            newest = store.newest_state()
            assert newest is None or newest[1] == {"step": newest[0]}
            assert (-1 if newest is None else newest[0]) >= max(states, default=-1)
            begin = store._oldest()
            found = reports_of(store, begin)
            acknowledged = [e for e in done if isinstance(e, tuple) and e[0] >= begin]
            assert [each for each in found if each in acknowledged] == acknowledged
            assert len(found) <= len(acknowledged) + 2
            if not crashed:
                break
        else:
            raise AssertionError("the script never ended")


@given(st.data())
def test_a_planner_that_was_only_slow_overwrites_nothing(data: st.DataObject) -> None:
    """At any operation of the old planner, a successor begins, reports and saves."""
    FaultyStorage.clear()
    url = "faulty://store"
    old = opened(url)
    old.save_state(0, {"who": "old"})
    successors: list[RunStore] = []
    relied: list[Any] = []

    def report(store: RunStore, step: int, who: str) -> None:
        store.add_report(step, step, 0, {"who": who})
        relied.append((step, step, 0, {"who": who}))

    def takes_over(storage: Any, path: str, value: bytes) -> None:
        FaultyStorage.strike(-1, takes_over)
        successors.append(opened(url))
        relied.append("taken over")
        for step in range(data.draw(st.integers(0, 2))):
            report(successors[0], 100 + step, "successor")
            successors[0].save_state(100 + step, {"who": "successor"})

    FaultyStorage.strike(data.draw(st.integers(0, 30)), takes_over)
    try:
        for step in range(1, 6):
            report(old, step, "old")
            old.save_state(step, {"who": "old"})
        superseded = False
    except SupersededError:
        superseded = True
    assert not superseded or successors
    FaultyStorage.strike(-1, takes_over)
    if successors:
        with pytest.raises(SupersededError):
            old.add_report(7, 7, 0, {"who": "old, late"})
        report(successors[0], 200, "successor")
    third = opened(url)
    found = reports_of(third, third._oldest())
    wanted = [each for each in relied if each != "taken over" and each[0] >= third._oldest()]
    assert [each for each in found if each in wanted] == wanted
    # What the old planner wrote and did not rely on counts only if the successor has read it.
    extra = [each for each in found if each not in wanted]
    read = reports_of(successors[0], successors[0]._oldest()) if successors else []
    assert all(each in read for each in extra)
    if successors:
        newest = third.newest_state()
        assert newest is None or newest[0] < 100 or newest[1] == {"who": "successor"}
