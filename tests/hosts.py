"""Two hosts on one machine: networks, names and temporary folders of their own, joined by a cable
that a test may make slow, lossy or cut. With root's rights, and tools of Linux."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cable

if TYPE_CHECKING:
    from ranks import Rank

TOOLS = ("ip", "ss", "nsenter", "unshare")
TEMPORARY = "/var/tmp"
RENDEZVOUS = 29500


def tell(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def why_not_two() -> str:
    """Why this machine cannot be two; empty if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    try:
        tell("unshare", "-n", "-u", "ip", "tuntap", "add", "mode", "tap", "name", "c0")
    except subprocess.CalledProcessError as error:
        return f"no networks can be made: {error.stderr.decode().strip()}"
    return ""


class Host:
    """Lives until it is closed, and with it what was started on it."""

    def __init__(self, number: int) -> None:
        self.name, self.device = f"host{number}", f"cable{number}"
        self.address = f"10.214.0.{number + 1}"
        made = f"hostname {self.name} && mount -t tmpfs none {TEMPORARY} && ip link set lo up"
        apart = ["unshare", "-n", "-u", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            [*apart, "sh", "-c", f"{made} && echo made && exec cat"],
            stdin=subprocess.PIPE,  # with this process, however it ends, all hosts end
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "made\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text())
        """Of its first process."""

    def command(self, *words: object) -> list[str]:
        """A command that runs on it."""
        own = f"TMPDIR={TEMPORARY}"
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "env", own]
        return [*enter, *map(str, words)]

    def python(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(sys.executable, "-u", *words),
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Cable:
    """Joins two hosts. At first it passes all frames at once."""

    def __init__(self, *hosts: Host) -> None:
        ends = [str(word) for host in hosts for word in (host.pid, host.device)]
        self._hosts = hosts
        self._ways: list[dict[str, Any]] = [{}, {}]
        self._relay = subprocess.Popen(
            [sys.executable, cable.__file__, *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "laid\n"
        for host in hosts:
            tell(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", host.device))
            tell(*host.command("ip", "link", "set", host.device, "up"))

    def change(self, *, towards: Host | None = None, **changes: Any) -> list[tuple[int, int]]:
        """Changes the ways in both directions, or towards one host; see `cable.Way.change`. Returns
        how many frames have passed, and how many are lost, towards the second host and back."""
        for target, way in zip(reversed(self._hosts), self._ways):
            if towards in (None, target):
                way.update(changes)
        assert self._relay.stdin is not None
        self._relay.stdin.write(json.dumps(self._ways) + "\n")
        self._relay.stdin.flush()
        counted: list[tuple[int, int]] = json.loads(self._answer())
        return counted

    def _answer(self) -> str:
        assert self._relay.stdout is not None
        return self._relay.stdout.readline()

    def close(self) -> None:
        self._relay.communicate()


class Hosts(NamedTuple):
    first: Host
    second: Host
    cable: Cable

    def each(self, ranks: int) -> Callable[[Rank], None]:
        """To be the `prepare` of a `Job` of so many ranks on each host."""

        def move(rank: Rank) -> None:
            host = self[rank.rank // ranks]
            assert isinstance(host, Host)
            cable.enter(host.pid, "net", "uts")
            os.environ["GLOO_SOCKET_IFNAME"] = host.device
            rank.rendezvous = f"tcp://{self.first.address}:{RENDEZVOUS}"

        return move


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    with ExitStack() as made:
        hosts = []
        for number in range(2):
            hosts.append(Host(number))
            made.callback(hosts[-1].close)
        joined = Cable(*hosts)
        made.callback(joined.close)
        yield Hosts(*hosts, joined)
