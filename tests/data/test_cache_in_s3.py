"""A cache of an object store that is slow, fails, cuts off, refuses and changes: the bytes of one
version, or one error."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_worker import BLOCK, small_blocks

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto", reason="moto is not installed")

from evenstep.data import Source
from evenstep.data.block_cache import BlockCache
from evenstep.data.source_files import SourceFile, list_files
from evenstep.errors import StorageError

SIZE = 40 * BLOCK - 123
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>it has expired</Message></Error>"


class Store:
    """A server of S3 whose answers may be spoilt."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self.fault: Callable[[], str | None] = lambda: None
        self.fetched = 0
        """Bytes of objects in its answers."""

    def __call__(self, environ: Any, start: Any) -> Any:
        of_object = (
            environ["REQUEST_METHOD"] in ("GET", "HEAD") and environ["PATH_INFO"] == "/bucket/o"
        )
        fault = self.fault() if of_object else None
        if fault == "slow":
            threading.Event().wait(0.05)
        if fault == "busy":
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        if fault == "expired":
            start("403 Forbidden", [("Content-Length", str(len(EXPIRED)))])
            return [EXPIRED]
        body = b"".join(self._application(environ, start))
        if of_object and environ["REQUEST_METHOD"] == "GET":
            self.fetched += len(body)
        return [body[: len(body) // 2] if fault == "cut" else body]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Store, str]]:
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    store = Store()
    server = make_server("127.0.0.1", 0, store, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield store, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture
def store(served: tuple[Store, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    small_blocks(monkeypatch)
    monkeypatch.setattr("evenstep.data.storage._FIRST_PAUSE", 0.001)
    monkeypatch.setattr("evenstep.data.storage._LONGEST_PAUSE", 0.01)
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    yield served[0]
    served[0].fault = lambda: None


@pytest.fixture
def system(store: Store, served: tuple[Store, str]) -> Iterator[Any]:
    """Its bucket has the object `o`."""
    import s3fs

    system = s3fs.S3FileSystem(**options(served[1]), skip_instance_cache=True)
    system.mkdir("bucket")
    system.pipe("bucket/o", content(0))
    store.fetched = 0
    yield system
    store.fault = lambda: None
    system.rm("bucket", recursive=True)


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


def options(address: str) -> dict[str, Any]:
    once = {"retries": {"max_attempts": 1}}
    return {"key": "k", "secret": "s", "endpoint_url": address, "config_kwargs": once}


@pytest.fixture
def opened(system: Any, served: tuple[Store, str], tmp_path: Path) -> Callable[[], SourceFile]:
    """Opens the object by way of a cache."""
    cache = BlockCache(tmp_path / "cache", 1 << 20)

    def open_object() -> SourceFile:
        given = {**options(served[1]), "skip_instance_cache": True}
        source = Source("s", "s3://bucket/o", format="jsonl", cache=cache, storage_options=given)
        (file,) = list_files(source)
        return file

    return open_object


def read(file: SourceFile, at: int = 0, size: int = -1) -> bytes:
    with file.open() as opened:
        opened.seek(at)
        return opened.read(size)


def test_an_object_is_fetched_once_whatever_the_store_answers_at_times(
    store: Store, opened: Callable[[], SourceFile]
) -> None:
    draw = random.Random(0)
    file, other = opened(), opened()
    store.fault = lambda: draw.choice((None, None, "slow", "busy", "cut"))
    for _ in range(20):
        at, size = draw.randrange(SIZE), draw.randrange(9 * BLOCK)
        assert read(draw.choice((file, other)), at, size) == content(0)[at : at + size]
    assert read(file) == read(other) == content(0)
    assert file.cache is not None
    assert other.cache is not None
    assert file.cache.counts.fetched_bytes + other.cache.counts.fetched_bytes == SIZE
    store.fault, before = lambda: None, store.fetched
    assert before >= SIZE
    assert read(opened()) == content(0)  # of a later run
    assert store.fetched == before


def test_what_is_kept_needs_no_credentials_and_what_is_not_is_an_error_until_they_are_back(
    store: Store, opened: Callable[[], SourceFile]
) -> None:
    file, part = opened(), 5 * BLOCK
    assert read(file, 0, part) == content(0)[:part]
    store.fault = lambda: "expired"
    assert read(file, 0, part) == content(0)[:part]
    with pytest.raises(StorageError, match=r"bucket/o cannot be read: .*not tried again"):
        read(file, 0, SIZE)
    store.fault = lambda: None
    assert read(file) == content(0)
    assert store.fetched == SIZE


def test_an_object_that_is_lost_or_replaced_is_read_as_it_was_or_not_at_all(
    store: Store, system: Any, opened: Callable[[], SourceFile]
) -> None:
    file, part = opened(), 5 * BLOCK
    assert read(file, 0, part) == content(0)[:part]
    system.rm("bucket/o")
    assert read(file, 0, part) == content(0)[:part]
    with pytest.raises(StorageError, match="bucket/o cannot be read: FileNotFoundError"):
        read(file)
    system.pipe("bucket/o", content(1))
    assert read(file, 0, part) == content(0)[:part]
    with pytest.raises(StorageError, match="bucket/o has changed since it was opened"):
        read(file, part - 10, 100 + BLOCK)
    replaced = opened()
    assert read(replaced) == content(1)
    assert read(file, 0, part) == content(0)[:part]
    system.pipe("bucket/o", content(0))  # as it was
    assert read(file) == read(opened()) == content(0)
