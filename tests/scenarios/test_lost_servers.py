"""A fork server, or what it forks, that is killed or stopped at any moment: another way to start
workers is taken within seconds, or a pass that it takes with it is an error; nothing hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import listen
from ranks import Rank, run

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError
from evenstep.loader.batcher import batcher_handles
from evenstep.loader.start import fork_server

ROWS = 24


class Telling(Documents):
    """Says which process forked its batcher."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**super().__getitem__(index), "server": psutil.Process().parent().ppid()}


class Stuck(Telling):
    """Unpickled in the process that the server forks, which it stops or ends once."""

    def __init__(self, folder: Path, number: signal.Signals) -> None:
        super().__init__(ROWS)
        self.folder, self.number = folder, number

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        flag = self.folder / "unpickled"
        if not flag.exists():
            flag.write_text(str(os.getpid()))
            os.kill(os.getpid(), self.number)


def make(dataset: Any = None, **options: Any) -> evenstep.DataLoader:
    dataset = Telling(ROWS) if dataset is None else dataset
    return evenstep.DataLoader(dataset, batch_size=4, num_workers=1, **options)


def whole_pass(loader: evenstep.DataLoader) -> set[int]:
    """Every row once; the processes that forked batchers."""
    batches = list(loader)
    assert sorted(int(i) for b in batches for i in b["identity"]) == list(range(ROWS))
    loader.close()
    return {int(server) for batch in batches for server in batch["server"]}


def served(servers: set[int]) -> bool:
    return os.getpid() not in servers


@contextlib.contextmanager
def after(seconds: float, pid: int, number: signal.Signals) -> Iterator[None]:
    """Sends a signal from a thread. evenstep's own threads are not warned of."""

    def send() -> None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    thread = threading.Thread(target=send, name="evenstep-test")
    thread.start()
    yield
    thread.join()


def server_pid() -> int:
    return fork_server.fork_server()._process.pid


def beside_a_thread() -> None:
    """Where a fork of the trainer would copy what another thread holds."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def lost_at_every_moment(rank: Rank, folder: Path, number: signal.Signals) -> bool:
    beside_a_thread()
    # Looks more often, and waits as long; but one second for a batcher that nobody says has ended.
    batcher_handles.GRACE = -4.0
    fork_server._LOOK, fork_server._PATIENCE, fork_server._LATE = 0.1, 1200, 600
    said, stopped = listen(), number is signal.SIGSTOP
    while_it_starts(number)
    # One that is dead before it is asked is replaced without a word.
    assert any("is stopped" in line for line in said) == stopped
    said.clear()
    if stopped:
        amid_a_pass(said)
        said.clear()
    by_server = served(whole_pass(make(Stuck(folder, number))))
    assert by_server == stopped
    assert bool(said) == stopped
    return True


def while_it_starts(number: signal.Signals) -> None:
    loader, server = make(), server_pid()
    with after(0.7, server, number), contextlib.suppress(LoaderDiedError):
        # Unless it was lost after the batcher had started.
        assert served(whole_pass(loader))
    loader.close()
    if number is signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server_pid(), signal.SIGCONT)


def amid_a_pass(said: list[str]) -> None:
    loader = make(Telling(400), memory=evenstep.Memory(prefetch=1, buffer_size=8))
    steps = loader.steps()
    batch, _ = next(steps)
    os.kill(server_pid(), signal.SIGSTOP)
    assert sum(1 for _ in steps) == 99  # its batchers go on
    loader.close()
    assert not said
    assert {int(batch["server"][0])}.isdisjoint(servers := whole_pass(make()))
    assert served(servers)
    assert "is stopped; another way to start workers is taken" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_server_or_its_process_that_is_lost_at_any_moment_is_replaced(
    tmp_path: Path, number: signal.Signals
) -> None:
    assert run(lost_at_every_moment, 1, tmp_path, number, folder=tmp_path / "job", within=150) == [
        True
    ]


SLOW = """
import time
time.sleep({seconds})
class Slow:
    def __len__(self): return 24
    def __getitem__(self, index): return {{"input_ids": [1] * 5, "identity": index, "server": 0}}
"""


def slow_imports(rank: Rank, folder: Path) -> Any:
    import sys

    beside_a_thread()
    sys.path.insert(0, str(folder))
    said = listen()
    (folder / "slow_rows.py").write_text(SLOW.format(seconds=0))
    import slow_rows

    (folder / "slow_rows.py").write_text(SLOW.format(seconds=30))
    os.utime(folder / "slow_rows.py", (1, 1))
    whole_pass(make(slow_rows.Slow()))
    return said, fork_server.fork_server()._lost


@pytest.mark.soak
def test_imports_may_take_long(tmp_path: Path) -> None:
    ((said, lost),) = run(slow_imports, 1, tmp_path, folder=tmp_path / "job", within=150)
    assert said == ["waits for evenstep's fork server, which still imports or unpickles"]
    assert not lost
