"""What a role works on and waits for, as it says itself."""

from __future__ import annotations

import threading

from evenstep.service.remote.requests import OpenRequests, Request, WaitTimer


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
