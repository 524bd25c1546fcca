"""Which way batchers are started, what the fork server's processes see, and the warning."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from pickle import PicklingError
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import documents
import evenstep
from documents import Documents
from evenstep.loader.start import choice
from evenstep.loader.start.portable import LimitedPickler, NotPortable
from loader_options import grouped

COUNT = 16
SHIFT = 0
SAID = ("server", "epoch", "shift", "setting", "floats")


class Telling(Documents):
    """Documents that say who prepared them, with what settings."""

    shift = 0

    def __init__(self, extra: Any = None) -> None:
        super().__init__(COUNT)
        self.extra = extra
        self.epoch = 0

    def total_shift(self) -> int:
        return SHIFT + self.shift + documents.VOCABULARY

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            **super().__getitem__(index),
            "server": psutil.Process().parent().ppid(),
            "epoch": self.epoch,
            "shift": self.total_shift(),
            "setting": int(os.environ.get("EVENSTEP_TEST_SETTING", "0")),
            "floats": torch.tensor(0.5).element_size(),
        }


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., evenstep.DataLoader]]:
    """Makes loaders, and closes them at the end. No warning has been given yet."""
    monkeypatch.setattr(choice, "_warned", False)
    with contextlib.ExitStack() as stack:

        def loader_with(dataset: Any = None, **options: Any) -> evenstep.DataLoader:
            loader = evenstep.DataLoader(
                Telling() if dataset is None else dataset,
                **grouped(**{"batch_size": 4, "num_workers": 1, **options}),
            )
            stack.callback(loader.close)
            return loader

        yield loader_with


def whole_pass(loader: evenstep.DataLoader) -> dict[str, int]:
    """Makes a pass, and gives what its samples say: all of them the same."""
    batches = list(loader)
    assert sum(len(batch["identity"]) for batch in batches) == COUNT
    said = {name: {int(v) for batch in batches for v in batch[name]} for name in SAID}
    return {name: value for name, (value,) in said.items()}


def forked(said: dict[str, int]) -> bool:
    """Whether the batcher is a child of the trainer, not of a fork server."""
    return said["server"] == os.getpid()


@pytest.mark.parametrize("place", ["a thread", "an accelerator", "neither"])
def test_a_trainer_is_forked_unless_something_else_runs_in_it(
    make: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, place: str
) -> None:
    if place == "a thread":
        request.getfixturevalue("another_thread")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: place == "an accelerator")
    assert forked(whole_pass(make())) == (place == "neither")


@pytest.mark.usefixtures("another_thread")
def test_a_pass_sees_the_dataset_and_the_settings_as_it_begins(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make()
    before = whole_pass(loader)
    assert not forked(before)
    loader.dataset.epoch = 3
    monkeypatch.setenv("EVENSTEP_TEST_SETTING", "7")
    torch.set_default_dtype(torch.float64)
    try:
        after = whole_pass(loader)
    finally:
        torch.set_default_dtype(torch.float32)
    assert after == {**before, "epoch": 3, "setting": 7, "floats": 8}


@pytest.mark.usefixtures("another_thread")
@pytest.mark.filterwarnings("ignore:evenstep forks workers")
def test_what_a_copy_would_change_or_cost_is_forked(make: Any) -> None:
    loader = make(Telling(np.zeros(3_000_000)))
    assert forked(whole_pass(loader))
    loader.dataset.epoch = 3
    assert whole_pass(loader)["epoch"] == 3


def test_memory_that_processes_may_share_is_not_copied(tmp_path: Path) -> None:
    class Local(Telling):
        pass

    mapped = np.memmap(tmp_path / "lengths", np.int64, "w+", shape=(4,))
    shared = SharedMemory(create=True, size=8)
    try:
        over = np.ndarray((8,), np.uint8, shared.buf)
        large = (torch.zeros(5_000_000)[:1], [bytes(1 << 19) for _ in range(4)])
        tensor = torch.zeros(5).share_memory_()
        odd = (Local(), lambda: None, threading.Lock())
        for obj in (mapped, mapped[1:], shared, over, tensor, *large, *odd):
            with pytest.raises((NotPortable, TypeError, AttributeError, PicklingError)):
                LimitedPickler(1 << 20, 5).bytes_of([obj])
        del over, obj
    finally:
        shared.close()
        shared.unlink()
    assert LimitedPickler(1 << 20, 5).bytes_of([np.frombuffer(b"12345678"), np.arange(9)[2:]])


def other_shift(self: Telling) -> int:
    return -1


@pytest.mark.parametrize(
    ("changed", "value", "shift"),
    [
        (f"{__name__}.SHIFT", 5, 69),
        ("documents.VOCABULARY", 5, 5),
        (f"{__name__}.Telling.total_shift", other_shift, -1),
    ],
    ids=["global", "module attribute", "method"],
)
@pytest.mark.usefixtures("another_thread")
@pytest.mark.filterwarnings("ignore:evenstep forks workers")
def test_what_was_changed_since_it_was_imported_is_seen(
    make: Any, monkeypatch: pytest.MonkeyPatch, changed: str, value: Any, shift: int
) -> None:
    monkeypatch.setattr(changed, value)
    said = whole_pass(make())
    assert forked(said)
    assert said["shift"] == shift


@pytest.fixture(autouse=True)
def no_threads_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that other tests use have left some in this process."""
    left = set(threading.enumerate())
    own = SimpleNamespace(**vars(threading))
    own.enumerate = lambda: [thread for thread in threading.enumerate() if thread not in left]
    monkeypatch.setattr(choice, "threading", own)


@pytest.fixture
def another_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="busy")
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.usefixtures("another_thread")
@pytest.mark.parametrize(
    ("dataset", "options", "says"),
    [
        (Telling(), {}, None),
        (Telling(), {"num_workers": 0}, None),
        (Telling(), {"multiprocessing_context": "fork"}, "Leave out multiprocessing_context"),
        (Telling(threading.Lock()), {}, "cannot pickle '_thread.lock' object"),
    ],
    ids=["served", "threads", "asked for", "forked"],
)
def test_a_fork_beside_other_threads_is_warned_of_once(
    make: Any, dataset: Any, options: dict[str, Any], says: str | None
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            whole_pass(make(dataset, **options))
    texts = [str(w.message) for w in caught if w.category is RuntimeWarning]
    assert len(texts) == (says is not None)
    assert all("(busy)" in text and str(says) in text for text in texts)


def test_a_fork_beside_no_other_thread_is_not_warned_of(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # The threads of another loader know what they hold.
        steps = make(num_workers=0, prefetch=1).steps()
        next(steps)
        whole_pass(make(multiprocessing_context="fork"))
        steps.close()


@pytest.mark.slow
def test_a_folder_whose_path_is_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    code = (
        "import evenstep; from documents import Documents\n"
        "loader = evenstep.DataLoader(Documents(9), policy=evenstep.FixedBatch(3), num_workers=1,"
        " multiprocessing_context='forkserver')\n"
        "try: list(loader)\n"
        "except evenstep.errors.LoaderDiedError as error: print(error)"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": paths}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert "set TMPDIR to a shorter one" in said


ELSEWHERE = """
import os
import threading
import psutil
import evenstep
from documents import Documents

class Telling(Documents):
    def __getitem__(self, index):
        return {"server": psutil.Process().parent().ppid(), **super().__getitem__(index)}

if __name__ == "__main__":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    loader = evenstep.DataLoader(
        Telling(16), policy=evenstep.TokenBudget(2048), num_workers=1
    )
    servers = [int(server) for batch in loader for server in batch["server"]]
    loader.close()
    print(len(servers), os.getpid() in servers)
"""


def test_a_script_is_served_and_nothing_is_imported_from_the_working_directory(
    tmp_path: Path,
) -> None:
    here, script = tmp_path / "here", tmp_path / "train.py"
    here.mkdir()
    script.write_text(ELSEWHERE)
    for name in ("signal", "subprocess", "socket", "numpy"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    paths = [str(Path(documents.__file__).parent), *filter(None, sys.path)]
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "16 False"), ran.stderr
    assert not (here / "ran").exists()
