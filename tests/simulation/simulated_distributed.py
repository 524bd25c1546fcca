"""What the loader uses of `torch.distributed`, over simulated sockets in a ring, as Gloo has them.

Every rank passes on what it gets to its right neighbour. So when a rank dies its neighbours notice,
and the others once a neighbour has closed its own sockets.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
from types import SimpleNamespace
from typing import Any

import simulated_pipes
from simulated_pipes import Connection
from simulated_threading import Simulated
from simulated_world import Process, World, current

from evenstep.loader.transport.lifeline_sockets import partners_of
from evenstep.loader.transport.peers import Door

_LOST = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
    "[127.0.0.1]:40001. This is often caused by a rank that ended"
)


class ProcessGroup:
    """A group's sockets: of each rank, that to its right neighbour and that from its left one."""

    def __init__(self, ranks: list[Process]) -> None:
        self.ranks = ranks
        self.rights: list[Connection] = []
        self.lefts: list[Connection] = [None] * len(ranks)  # type: ignore[list-item]
        self.calls = [0] * len(ranks)
        self.broken: set[int] = set()
        self.deaf: set[int] = set()
        """Ranks that miss that connections were closed."""
        self.will_be_deaf = False
        for rank, process in enumerate(ranks):
            right = (rank + 1) % len(ranks)
            left_end, end = simulated_pipes.pipe(
                False, first=ranks[right], second=process, capacity=1 << 30
            )
            self.rights.append(end)
            self.lefts[right] = left_end

    def set_timeout(self, limit: Any) -> None:
        """Before, a collective without an end would have failed after a while."""
        if self.will_be_deaf:
            self.deaf.add(_here()[1])

    def gather(self, rank: int, data: bytes) -> list[bytes]:
        """All ranks' data, in the order of ranks."""
        work = Work(self, rank, data)
        work.wait()
        return work.gathered()

    def close(self, rank: int) -> None:
        process = current().process
        self.rights[rank].release(process)
        self.lefts[rank].release(process)


class Work:
    """A rank's part in a collective. It goes on while the rank waits."""

    def __init__(self, group: ProcessGroup, rank: int, data: bytes, done: Any = None) -> None:
        self._group, self._rank, self._done = group, rank, done
        group.calls[rank] += 1
        self._call = group.calls[rank]
        self._found = {rank: data}
        self._sent = self._failed = False

    def is_completed(self) -> bool:
        return self._failed or len(self._found) == len(self._group.ranks)

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        world = current().process.world
        due = None if timeout is None else world.now + timeout.total_seconds()
        try:
            while not self.is_completed():
                if not self._move(None if due is None else max(due - world.now, 0.0)):
                    raise RuntimeError("Operation timed out!")
        except (EOFError, OSError):
            self._group.broken.add(self._rank)
            self._failed = True
        if self._failed:
            raise RuntimeError(_LOST)
        if self._done is not None:
            self._done(self.gathered())
            self._done = None

    def gathered(self) -> list[bytes]:
        return [self._found[other] for other in range(len(self._group.ranks))]

    def _move(self, seconds: float | None) -> bool:
        """Passes on what came last, and receives one more; False if none comes in time."""
        group, rank = self._group, self._rank
        if rank in group.broken:
            raise EOFError
        if not self._sent:
            owner = (rank - len(self._found) + 1) % len(group.ranks)
            with contextlib.suppress(*([OSError] if rank in group.deaf else [])):
                group.rights[rank].send((self._call, owner, self._found[owner]), by_kernel=True)
            self._sent = True
        left = group.lefts[rank]
        if not (left.arrives(seconds) if rank in group.deaf else left.poll(seconds)):
            return False
        number, sender, piece = left.recv(by_kernel=True)
        if number != self._call:
            raise AssertionError(f"call {self._call} of rank {rank} meets call {number}")
        self._found[sender] = piece
        self._sent = False
        return True


class Meeting:
    """Lifelines are pipes here."""

    door = Door(("10.0.0.1",), 1, "token")

    def __init__(self, group: Any) -> None:
        pass

    def meet(self, rank: int, peers: list[Any], limit: float) -> dict[int, Connection]:
        met = {}
        lines = _here()[0].lifelines_of(rank)
        for line in lines.values():
            with contextlib.suppress(OSError):
                line.send(rank, by_kernel=True)
        for other, line in lines.items():
            with contextlib.suppress(EOFError, OSError):
                if line.poll(10.0):
                    line.recv(by_kernel=True)
                    met[other] = line
        return met


class FileStore:
    """No job here has one."""


class Store:
    """The store by which the group was formed."""

    def __init__(self, keeper: Process | None) -> None:
        """
        Args:
            keeper: the process in which it is; None for a launcher's, to which nothing happens.
        """
        self._keeper = keeper
        self._values: set[str] = set()

    def _reach(self) -> set[str]:
        keeper = self._keeper
        if keeper is None:
            current().process.world.pause()
            return self._values
        keeper.world.until(
            lambda: keeper.paused is None or not keeper.alive, keeper.exited, keeper.continued
        )
        if not keeper.alive:
            raise RuntimeError("Connection reset by peer")
        return self._values

    def set(self, key: str, value: str) -> None:
        self._reach().add(key)

    def check(self, keys: list[str]) -> bool:
        return self._reach().issuperset(keys)

    def delete_key(self, key: str) -> bool:
        self._reach().discard(key)
        return True


class PrefixStore:
    def __init__(self, prefix: str, store: Any) -> None:
        self._prefix, self._store = prefix, store

    def set(self, key: str, value: str) -> None:
        self._store.set(self._prefix + key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check([self._prefix + key for key in keys])

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._prefix + key)


class _World:
    group_name = "0"

    def get_group_store(self) -> Store:
        return _here()[0].store


class Network:
    """The ranks of one job."""

    def __init__(self, world: World, ranks: list[Process]) -> None:
        self.world, self.ranks = world, ranks
        self.groups: list[ProcessGroup] = []
        self.opened = [0] * len(ranks)
        self.default = ProcessGroup(ranks)
        self.deaf = False
        self.lifelines: list[list[dict[int, Connection]]] = []
        self.met = [0] * len(ranks)
        one_host = ranks[0].host == ranks[-1].host
        self.store = Store(ranks[0] if one_host else None)

    def new_group(self, rank: int) -> ProcessGroup:
        number = self.opened[rank]
        self.opened[rank] += 1
        self.default.gather(rank, b"rendezvous")
        while len(self.groups) <= number:
            self.groups.append(ProcessGroup(self.ranks))
            self.groups[-1].will_be_deaf = self.deaf
        return self.groups[number]

    def lifelines_of(self, rank: int) -> dict[int, Connection]:
        """A rank's lifelines of the loader that it connects."""
        number = self.met[rank]
        self.met[rank] += 1
        if len(self.lifelines) == number:
            lines: list[dict[int, Connection]] = [{} for _ in self.ranks]
            for one, other in itertools.combinations(range(len(self.ranks)), 2):
                if other in partners_of(one, len(self.ranks)):
                    first, second = self.ranks[one], self.ranks[other]
                    ends = simulated_pipes.pipe(first=first, second=second)
                    lines[one][other], lines[other][one] = ends
                    for end in ends:
                        end.inherited = False
            self.lifelines.append(lines)
        return self.lifelines[number][rank]


def _here() -> tuple[Network, int]:
    process = current().process
    return process.world.network, process.rank


def _group(group: Any) -> tuple[ProcessGroup, int]:
    network, rank = _here()
    return (network.default if group in (None, _WORLD) else group), rank


def _all_gather(out: list[Any], tensor: Any, group: Any = None, async_op: bool = False) -> Work:
    assert async_op, "a collective that cannot be left"

    def fill(pieces: list[bytes]) -> None:
        for mine, piece in zip(out, pieces, strict=True):
            assert len(piece) == mine.numel(), "ranks gather unequal sizes"
            mine.numpy()[:] = memoryview(piece)

    return Work(*_group(group), tensor.numpy().tobytes(), fill)


def _barrier(group: Any = None) -> None:
    where, rank = _group(group)
    where.gather(rank, b"barrier")


def _new_group(*args: Any, **options: Any) -> ProcessGroup:
    network, rank = _here()
    return network.new_group(rank)


def _destroy(group: Any = None) -> None:
    where, rank = _group(group)
    where.close(rank)


_WORLD = _World()


class _Distributed(Simulated, SimpleNamespace):
    pass


distributed = _Distributed(
    FileStore=FileStore,
    ProcessGroup=ProcessGroup,
    group=SimpleNamespace(WORLD=_WORLD),
    PrefixStore=PrefixStore,
    is_available=lambda: True,
    is_initialized=lambda: current().process.world.network is not None,
    get_rank=lambda group=None: _here()[1],
    get_world_size=lambda group=None: len(_here()[0].ranks),
    get_process_group_ranks=lambda group: list(range(len(_here()[0].ranks))),
    get_backend=lambda group=None: "gloo",
    barrier=_barrier,
    new_group=_new_group,
    all_gather=_all_gather,
    destroy_process_group=_destroy,
)
