"""A cache gives the bytes of the file, and each is fetched once, whoever is killed; its files never
exceed the limit; what is wrong with its disk stops nobody."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Any

import pytest
from cache_worker import (
    BLOCK,
    FILE,
    cached,
    fetch_forever,
    held,
    read_parts,
    read_whole,
    small_blocks,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.data import block_cache
from evenstep.errors import StorageError

BLOCKS = 30


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    monkeypatch.setattr("evenstep.data.storage._FIRST_PAUSE", 0.0005)
    monkeypatch.setattr("evenstep.data.storage._LONGEST_PAUSE", 0.002)
    monkeypatch.setattr("evenstep.data.storage._FIRST_AHEAD", BLOCK // 2)
    monkeypatch.setattr(block_cache, "_warned", set())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "far.jsonl"
    path.write_bytes(random.Random(0).randbytes(BLOCKS * BLOCK - 300))
    return path


def spoil(folder: Path, how: str, draw: random.Random) -> None:
    """What may happen to the files of a cache."""
    blocks = sorted(folder.glob("*.block"))
    block = draw.choice(blocks) if blocks else folder / "none.block"
    content = block.read_bytes() if blocks else b""
    if how == "gone":
        shutil.rmtree(folder, ignore_errors=True)
    elif how == "evicted":
        block.unlink(missing_ok=True)
    elif how == "total" and folder.exists():
        (folder / "total").write_bytes(draw.randbytes(30))
    elif how == "half" and blocks:
        block.write_bytes(content[: len(content) // 2])
    elif how == "flipped" and blocks:
        at = draw.randrange(len(content))
        block.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif how == "swapped" and blocks:
        block.write_bytes(draw.choice(blocks).read_bytes())
    elif how == "left" and folder.exists():  # by a process that was killed
        (folder / f"{'0' * 32}-{draw.randrange(9)}.part").write_bytes(bytes(FILE // 2))


HOW = ("", "", "gone", "evicted", "total", "half", "flipped", "swapped", "left")
STEPS = st.tuples(
    st.integers(0, BLOCKS * BLOCK), st.integers(0, 12 * BLOCK), st.sampled_from(HOW), st.booleans()
)


@settings(deadline=None)
@given(
    steps=st.lists(STEPS, min_size=1, max_size=25),
    room=st.integers(1, BLOCKS + 2),
    seed=st.integers(0, 2**32),
)
def test_any_reads_give_the_bytes_of_the_file_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], room: int, seed: int
) -> None:
    draw = random.Random(seed)
    base = tmp_path_factory.mktemp("read")
    path, folder = base / "far.jsonl", base / "cache"
    content = draw.randbytes(BLOCKS * BLOCK - draw.randrange(BLOCK))
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        patch.setattr("evenstep.data.storage._FIRST_PAUSE", 0.0005)
        file = cached(path, folder, room * FILE, rate=0.2, seed=seed)
        opened = file.open()
        for at, size, how, anew in steps:
            if anew:
                opened = file.open()
            opened.seek(at)
            assert opened.read(size) == content[at : at + size]
            before = held(folder) if folder.exists() else 0
            spoil(folder, how, draw)
            # What was written by others is not of the cache, until it is next looked through.
            assert before <= room * FILE or any(done[2] in ("left", "half") for done in steps)
        assert file.open().read() == content
        if room < BLOCKS:  # so it was looked through, and what killed processes left is gone
            assert held(folder) <= room * FILE
            assert not list(folder.glob("*.part"))
    assert file.cache is not None
    if room >= BLOCKS and not any(how for _, _, how, _ in steps):
        assert file.cache.counts.misses <= BLOCKS  # each at most once


@pytest.fixture(scope="module")
def processes() -> Any:
    """All start from one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cache_worker"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # forkserver imports without sys.path
        ensure_running()
    return context


Start = Callable[[int, Callable[..., Any], Any], Any]


@pytest.fixture
def start(processes: Any, path: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a process, whose reads are of a seed, that does something with the file."""
    started = []

    def starts(seed: int, work: Callable[..., Any], *given: Any) -> Any:
        arguments = (tmp_path / f"{seed}.json", path, tmp_path / "cache", seed, *given)
        started.append(processes.Process(target=work, args=arguments, daemon=True))
        started[-1].start()
        return started[-1]

    yield starts
    for process in started:
        process.kill()
        process.join()


def said_by(process: Any, seed: int, tmp_path: Path) -> dict[str, int]:
    process.join(100)
    assert process.exitcode == 0
    found: dict[str, int] = json.loads((tmp_path / f"{seed}.json").read_text())
    return found


def test_processes_that_want_the_same_blocks_fetch_them_once(
    start: Start, path: Path, tmp_path: Path
) -> None:
    size, limit = path.stat().st_size, 1 << 20
    running = [start(seed, read_whole, limit) for seed in range(4)]
    counts = [said_by(process, seed, tmp_path) for seed, process in enumerate(running)]
    assert sum(each["fetched_bytes"] for each in counts) == size
    assert sum(each["misses"] for each in counts) == BLOCKS
    assert [each["fetched_bytes"] + each["served_bytes"] for each in counts] == [size] * 4


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 33))]
)
def test_processes_killed_in_the_middle_leave_the_others_right_and_the_limit_kept(
    start: Start, tmp_path: Path, seed: int
) -> None:
    folder, limit, draw = tmp_path / "cache", 12 * FILE, random.Random(seed)
    numbers = itertools.count(1000 * seed)
    running = [start(next(numbers), read_parts, limit, 1 << 40) for _ in range(3)]
    while not list(tmp_path.glob("cache/*.block")):
        time.sleep(0.01)
    for _ in range(12):
        time.sleep(draw.random() * 0.1)
        victim = running.pop(draw.randrange(3))
        assert victim.exitcode is None
        victim.kill()
        victim.join()
        running.append(start(next(numbers), read_parts, limit, 1 << 40))
    time.sleep(0.1)
    for process in running:
        assert process.exitcode is None  # what it read was right
        process.kill()
        process.join()
    assert held(folder) <= int((folder / "total").read_text().split()[1]) <= limit
    last = next(numbers)
    counts = said_by(start(last, read_parts, limit, 30), last, tmp_path)
    assert counts["misses"] > 0
    assert held(folder) <= limit


def test_a_killed_process_that_fetches_is_followed_at_once(
    start: Start, path: Path, tmp_path: Path
) -> None:
    """By another that has waited for its block."""
    folder = tmp_path / "cache"
    hung = start(0, fetch_forever, 1 << 20)
    while not (tmp_path / "0.json").exists():
        time.sleep(0.001)
    assert len(list(folder.glob("*.part"))) == 3
    found: list[bytes] = []

    def read() -> None:
        with cached(path, folder, 1 << 20).open() as opened:
            found.append(opened.read(3 * BLOCK))

    waiting = threading.Thread(target=read)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    hung.kill()
    hung.join()
    waiting.join(10)
    assert found == [path.read_bytes()[: 3 * BLOCK]]
    names = [each.name.split("-")[-1] for each in folder.glob("*.*")]
    assert sorted(names) == [f"{n}.block" for n in range(3)]


def test_a_full_disk_is_one_warning_and_files_are_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, content, full = tmp_path / "cache", path.read_bytes(), [False]

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, content: Any) -> None:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(name: Any, mode: str, *args: Any, **options: Any) -> Any:
        file = open(name, mode, *args, **options)  # noqa: SIM115
        return Full(file) if full[0] and mode == "wb" else file

    monkeypatch.setattr(block_cache, "open", opened, raising=False)
    file = cached(path, folder, 1 << 20)
    assert file.cache is not None
    with file.open() as near:
        assert near.read(5 * BLOCK) == content[: 5 * BLOCK]
    kept = held(folder)
    full[0] = True
    for _ in range(2):
        with file.open() as near:
            assert near.read() == content
    assert file.cache.counts.fetched_bytes == 2 * len(content) - kept // FILE * BLOCK
    assert held(folder) == kept
    (record,) = caplog.records
    assert record.getMessage() == (
        f"the cache {folder} cannot be written, and files are read without it: OSError: [Errno 28] "
        "No space left on device"
    )
    full[0] = False
    monkeypatch.setattr(file.cache, "_resting", 0.0)  # a minute later
    for _ in range(2):
        with file.open() as near:
            assert near.read() == content
    assert held(folder) == len(content) + BLOCKS * (FILE - BLOCK)


def test_a_changed_file_is_never_mixed_with_what_it_was(path: Path, tmp_path: Path) -> None:
    was, now = path.read_bytes(), random.Random(1).randbytes(path.stat().st_size)
    file = cached(path, tmp_path / "cache", 1 << 20)
    with file.open() as opened:
        opened.read(5 * BLOCK)
    path.write_bytes(now)
    os.utime(path, ns=(1, 1))
    with file.open() as opened:
        assert opened.read(5 * BLOCK) == was[: 5 * BLOCK]
        with pytest.raises(StorageError, match="has changed since it was opened"):
            opened.read()
    with cached(path, tmp_path / "cache", 1 << 20).open() as opened:
        assert opened.read() == now
