"""Who keeps all waiting, told from what each role says of itself."""

from __future__ import annotations

import threading
from typing import Any

from evenstep.service.registry.role_status import blame, wait_text, waits_of
from evenstep.service.remote.requests import OpenRequests, Request, WaitTimer


def asked(message: str, step: int | None, seconds: float, role: str = "", process: int = 0) -> Any:
    about = {"message": message, "step": step, "source": None, "seconds": seconds}
    return {**about, "role": role, "process": process, "host": "h"} if role else about


def doing(*, handles: Any = (), waits: Any = ()) -> dict[str, Any]:
    return {"process": {"handles": handles, "waits": waits}}


SILENT = {"process": {"process": 4, "host": "h"}, "silent_seconds": 3.0}
PLANNER = doing(waits=[asked("stage", 7, 19.0, "Source Loader 1", 4)])
CONSTRUCTOR = doing(
    waits=[asked("fetch", 6, 40.0, "Source Loader 0", 3), asked("plan", 7, 20.0, "the Planner", 2)]
)


def test_the_chain_ends_at_the_one_that_keeps_all_waiting() -> None:
    roles = {"Data Constructor 0": CONSTRUCTOR, "the Planner": PLANNER, "Source Loader 1": SILENT}
    to_the_planner = "which has waited 20 s for 'plan' of step 7 of the Planner (process 2 on h), "
    to_the_loader = (
        "which has waited 19 s for 'stage' of step 7 of Source Loader 1 (process 4 on h), "
    )

    def said(loader: Any) -> str:
        text = blame({**roles, "Source Loader 1": loader}, "Data Constructor 0", 7)
        assert text.startswith(to_the_planner + to_the_loader)
        return text.removeprefix(to_the_planner + to_the_loader)

    assert said(SILENT).startswith("which has not answered for 3 s: it is stopped")
    works = doing(handles=[asked("status", None, 30.0), asked("stage", 7, 18.6)])
    assert said(works) == "which has worked 19 s on 'stage' of step 7"
    assert said(doing()) == "which answers, and works on nothing"
    assert said({"died": "Source Loader 1"}) == "which has died"
    # Two that wait for each other, which no roles do, end the chain too.
    turned = doing(waits=[asked("plan", 7, 1.0, "the Planner", 2)])
    assert said(turned) == "which answers, and works on nothing"


def test_short_waits_count_only_if_nothing_is_said() -> None:
    roles = {"the Planner": PLANNER, "Data Constructor 0": CONSTRUCTOR, "Source Loader 0": doing()}
    roles["Source Loader 1"] = SILENT
    found = [(wait["by"], wait["role"], wait["silent"]) for wait in waits_of(roles, 30.0)]
    assert found == [
        ("Data Constructor 0", "Source Loader 0", False),
        ("the Planner", "Source Loader 1", True),
    ]
    (_, told) = waits_of(roles, 30.0)
    assert wait_text(told) == (
        "the Planner has waited 19 s for 'stage' of step 7 of Source Loader 1 (process 4 on h), "
        "which does not answer"
    )


def test_waits_of_all_threads_are_seen_while_they_last() -> None:
    requests = OpenRequests()
    timer, done = WaitTimer(requests), threading.Event()

    def wait() -> None:
        with timer.waiting(Request.of("ahead", ("web", 3, 5)), role="Source Loader 0"):
            done.wait(10)

    thread = threading.Thread(target=wait)
    thread.start()
    with requests.open(Request.of("release", (3, 12))):
        while len(requests.to_list()) < 2:
            pass
        found = {(each["message"], each["step"], each["source"]) for each in requests.to_list()}
    assert found == {("ahead", None, "web"), ("release", 12, None)}
    done.set()
    thread.join()
    assert requests.to_list() == []
    assert timer.waited == {}  # of this thread
