"""Connects the ranks that have lifelines with each other, over TCP.

Rank r has lifelines with the ranks that are 1, 2, 4, ... before and after it, so news of a loss
needs few hops. No port stays open.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from evenstep.loader.transport.patience import group_store, innermost_store
from evenstep.loader.transport.peers import Door, Peer

logger = logging.getLogger("evenstep")

_MEETING_SECONDS = 10.0  # in which all that have lifelines with a rank must connect
_UNKNOWN = 256  # connections that have not said whose they are; the oldest is closed
_PROBES = 120  # without an answer, at most: Linux allows 127
_OUTSIDE = "192.0.2.1"  # reserved for documentation
_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # Linux's request for an interface's address


class Meeting:
    """Where other ranks reach this one while lifelines are made."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """
        Args:
            group: all ranks; the default group when None.
        """
        self._socket = _listening()
        port = self._socket.getsockname()[1]
        self.door = Door(_addresses(group), port, secrets.token_hex(8))

    def meet(self, rank: int, peers: Sequence[Peer], limit: float) -> dict[int, Connection]:
        """Connects this rank to those it has lifelines with. All ranks call it together. A rank
        that cannot be reached has none, which is logged.

        Args:
            rank: of this process.
            peers: [ranks] who they are.
            limit: seconds after which a host that does not answer is lost.
        """
        deadline = time.monotonic() + _MEETING_SECONDS
        partners = partners_of(rank, len(peers))
        with self._socket:
            called = {
                other: line
                for other in partners
                if other > rank and (line := _call(rank, peers[rank], peers[other], deadline))
            }
            expected = {other for other in partners if other < rank}
            met = self._answer(peers, peers[rank].door.token, expected, deadline)
        for other, line in called.items():
            with contextlib.suppress(OSError):
                line.settimeout(max(deadline - time.monotonic(), 0.01))
                if _same(line.recv(64), peers[rank].door.token):
                    met[other] = line
        if missing := [other for other in partners if other not in met]:
            names = ", ".join(f"rank {other} ({peers[other]})" for other in missing)
            logger.warning(
                "rank %d cannot connect to %s, so it may wait for ever if such a host loses power; "
                "allow TCP connections between all hosts, on all ports",
                rank,
                names,
            )
        return {other: _watched(line, limit) for other, line in met.items()}

    def _answer(
        self, peers: Sequence[Peer], token: str, expected: set[int], deadline: float
    ) -> dict[int, socket.socket]:
        """Strangers may connect, too, and say nothing, so all are listened to at once."""
        found: dict[int, socket.socket] = {}
        unknown: list[socket.socket] = []
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            while expected - found.keys() and (left := deadline - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    with contextlib.suppress(OSError, ValueError):
                        if key.fileobj is self._socket:
                            line, _ = self._socket.accept()
                            unknown.append(line)
                            ready.register(line, selectors.EVENT_READ)
                            if len(unknown) > _UNKNOWN:
                                ready.unregister(unknown[0])
                                unknown.pop(0).close()
                            continue
                        line = next(each for each in unknown if each is key.fileobj)
                        ready.unregister(line)
                        given, _, number = line.recv(64).decode().partition(" ")
                        if _same(given.encode(), token) and int(number) in expected:
                            line.sendall(peers[int(number)].door.token.encode())
                            found[int(number)] = line
                            unknown.remove(line)
        for line in unknown:
            line.close()
        return found


def _listening() -> socket.socket:
    """On all interfaces, over IPv6 too where the system has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def partners_of(rank: int, ranks: int) -> list[int]:
    """Ranks that a rank has lifelines with."""
    distances = [1 << bit for bit in range((ranks - 1).bit_length())]
    both = {(rank + sign * distance) % ranks for distance in distances for sign in (1, -1)}
    return sorted(both - {rank})


def _call(rank: int, here: Peer, there: Peer, deadline: float) -> socket.socket | None:
    """A connection to another rank, over which this one has said who it is; None if it cannot be
    reached."""
    for address in there.door.addresses:
        if here.host != there.host and ipaddress.ip_address(address).is_loopback:
            continue
        with contextlib.suppress(OSError):
            left = max(deadline - time.monotonic(), 0.01)
            line = socket.create_connection((address, there.door.port), left)
            line.sendall(f"{there.door.token} {rank}".encode())
            return line
    return None


def _same(given: bytes, token: str) -> bool:
    return hmac.compare_digest(given, token.encode())


def _watched(line: socket.socket, limit: float) -> Connection:
    """The system asks the other host now and then whether it still has this connection.

    Probes may be lost, so there are many. That a host is lost is known two to three of them after
    the limit: one that answers within it, be it at its very end, is not.
    """
    seconds = math.ceil(limit / _PROBES)
    probes = math.ceil(limit / seconds) + 1
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    for option, value in (
        (idle, seconds),
        (getattr(socket, "TCP_KEEPINTVL", None), seconds),
        (getattr(socket, "TCP_KEEPCNT", None), probes),
    ):
        if option is not None:
            line.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(line.detach())


def _addresses(group: Any) -> tuple[str, ...]:
    """Of this host: of the interfaces that Gloo is told to use, and else those by which it reaches
    the host of the group's store, and other networks."""
    found = [_address_of(name) for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")]
    store = innermost_store(group_store(group))
    if not any(found):
        hosts = (getattr(store, "host", None) or socket.gethostname(), _OUTSIDE)
        found = [_route_to(host) for host in hosts]
    return tuple(dict.fromkeys(filter(None, [*found[:2], _LOOPBACK])))


def _address_of(interface: str) -> str:
    """Empty where it has none, or the system does not tell."""
    with contextlib.suppress(ImportError, OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
        import fcntl

        name = interface.encode()[:15].ljust(256, b"\0")
        return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, name)[20:24])
    return ""


def _route_to(host: str) -> str:
    """This host's address on the way to another one; empty where there is no way."""
    with contextlib.suppress(OSError):
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing
            address: str = probe.getsockname()[0]
            return address
    return ""
