"""How ranks reach each other: by loopback on one host, by names and interfaces on several."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from evenstep.errors import described
from evenstep.tools.doctor.finding import Finding

_INTERFACE = "GLOO_SOCKET_IFNAME"
_SECONDS = 5.0


def loopback() -> Iterator[Finding]:
    """Connects to this host."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), _SECONDS).close()
    except OSError as error:
        yield Finding(
            check="loopback",
            found=f"no connection to 127.0.0.1: ranks of one host cannot meet ({described(error)})",
            remedy="ip link set lo up; and allow connections to 127.0.0.1 in the firewall",
            breaks=True,
        )
        return
    yield Finding(check="loopback", found="127.0.0.1 answers")


def host_name() -> Iterator[Finding]:
    """Resolves this host's name as Gloo does, unless it is told an interface."""
    check, name = "host name", socket.gethostname()
    if name.partition(".")[0] in ("localhost", "(none)"):
        yield Finding(
            check=check,
            found=f"{name}, which tells no host from another",
            remedy="give each host a name of its own (hostnamectl set-hostname)",
        )
        return
    interfaces = [each for _, each in socket.if_nameindex() if each != "lo" and _is_up(each)]
    found, remedy = name, ""
    if interfaces and not os.environ.get(_INTERFACE):
        problem = _unreachable(name)
        if problem:
            found = f"{name} {problem}, so Gloo uses 127.0.0.1, which no other host reaches"
            remedy = (
                f"for jobs on several hosts set {_INTERFACE} to the interface between them: "
                f"{' or '.join(interfaces)}"
            )
    yield Finding(check=check, found=found, remedy=remedy)


def _is_up(name: str) -> bool:
    """True where the system does not tell."""
    with suppress(OSError):
        return Path(f"/sys/class/net/{name}/operstate").read_text().strip() != "down"
    return True


def _unreachable(name: str) -> str:
    """Why other hosts do not reach this one by the address of its name; empty if they may."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        return "cannot be resolved"
    address = str(where[0])
    if address.startswith("127.") or address == "::1":
        return f"is {address}"
    try:
        with socket.socket(family, kind) as own:
            own.bind(where)
    except OSError:
        return f"is {address}, which is not of this host"
    return ""


def interface() -> Iterator[Finding]:
    asked = os.environ.get(_INTERFACE)
    if not asked:
        return
    there = [name for _, name in socket.if_nameindex()]
    missing = [name for name in asked.split(",") if name not in there]
    yield Finding(
        check="interface",
        found=f"{_INTERFACE}={asked}" + "".join(f", and {name} is not here" for name in missing),
        remedy=f"set it to one of {', '.join(there)}, or unset it" if missing else "",
        breaks=bool(missing),
    )


def master() -> Iterator[Finding]:
    """Resolves where the ranks meet, if the environment says where."""
    where = os.environ.get("MASTER_ADDR")
    if not where:
        return
    try:
        socket.getaddrinfo(where, None)
    except OSError as error:
        yield Finding(
            check="MASTER_ADDR",
            found=f"{where} cannot be resolved ({described(error)})",
            remedy="set it to the address of the host of rank 0, or add that name to /etc/hosts",
            breaks=True,
        )
        return
    yield Finding(check="MASTER_ADDR", found=where)
